"""The plain schedule for what no family covers: parallel outside, vectors inside.

It may leave several loop nests, and so several parallel regions, in one kernel.
"""

from __future__ import annotations

from tvmfuse._tvm import s_tir
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import blocks
from tvmfuse.kernels.blocks import Block, Choose, Schedule
from tvmfuse.kernels.tiling import Machine, product

MIN_PARALLEL_STEPS = 16384  # below this, starting threads costs more than it saves
VECTORS = (1, 2, 4)  # computed in one turn of the last loop


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule every loop nest of a kernel by itself."""
    inline_what_can_be(sch)
    width = choose("vectors", VECTORS, default=1) * machine.lanes
    is_shared = choose("is_parallel", (False, True), default=True)
    for block in blocks.children(sch):
        if sch.get_loops(block):
            _schedule_nest(sch, block, width, is_shared=is_shared)


def inline_what_can_be(sch: Schedule) -> None:
    """Inline every elementwise block that is no result and lets itself be inlined."""
    results = blocks.outputs(sch)
    for block in blocks.children(sch):
        if blocks.is_reduction(sch, block) or any(blocks.same(sch, block, out) for out in results):
            continue
        try:
            sch.compute_inline(block)
        except s_tir.ScheduleError:
            continue  # it stays a loop nest of its own


def _schedule_nest(sch: Schedule, block: Block, width: int, *, is_shared: bool) -> None:
    loops = sch.get_loops(block)
    reduced = blocks.own_reduction_loops(sch, block)
    spatial = [loop for loop in loops if not any(blocks.same_loop(sch, loop, r) for r in reduced)]
    try:
        steps = product(blocks.extents(sch, loops))
    except LoweringError:
        return  # symbolic sizes: left as it is
    if not spatial:
        return
    *outer, last = spatial
    vector = []
    if blocks.extent(sch, last) >= width and blocks.is_last_axis(sch, block, last):
        rest, lanes = blocks.split_with_tail(sch, last, width)
        outer, vector = [*outer, rest], [lanes]
    else:
        outer = [*outer, last]
    sch.reorder(*outer, *reduced, *vector)
    if is_shared and steps >= MIN_PARALLEL_STEPS:
        sch.parallel(sch.fuse(*outer) if len(outer) > 1 and not vector else outer[0])
    for loop in vector:
        sch.vectorize(loop)
    if reduced:
        sch.decompose_reduction(block, reduced[0])

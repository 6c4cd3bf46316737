"""One loop nest around the result, for what no other family covers.

A grouped convolution in plain layout with its bias, a pooling with a scale: each task
owns some outer part of the result and computes what that part needs, in scratch. What
would have to be computed again for every task is refused.
"""

from __future__ import annotations

from tvmfuse.errors import LoweringError
from tvmfuse.kernels import blocks
from tvmfuse.kernels.blocks import Block, Choose, Schedule
from tvmfuse.kernels.generic import MIN_PARALLEL_STEPS, VECTORS, inline_what_can_be
from tvmfuse.kernels.steps import vectorize_step
from tvmfuse.kernels.tiling import Machine, product

_TASKS_PER_CORE = 4  # so that uneven ones even out
_MAX_REPEATED = 1.5  # windows that overlap at the edge of a task are computed by both


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule everything within loops over the outer axes of the only result.

    Raises
    ------
    LoweringError
        There are several results, or a task would repeat the work of others.
    """
    inline_what_can_be(sch)
    out = blocks.sole_output(sch)
    others = [block for block in blocks.children(sch) if not blocks.same(sch, block, out)]
    steps = [_steps(sch, block) for block in others]
    reduced = blocks.own_reduction_loops(sch, out)
    spatial = [
        loop
        for loop in sch.get_loops(out)
        if not any(blocks.same_loop(sch, loop, other) for other in reduced)
    ]
    if len(spatial) < 2:
        raise LoweringError("a result of one axis has no outer part")
    wanted = _TASKS_PER_CORE * machine.cores
    count = 1
    while count < len(spatial) - 1 and product(blocks.extents(sch, spatial[:count])) < wanted:
        count += 1
    sch.reorder(*spatial[:count], *reduced, *spatial[count:])
    task = sch.fuse(*spatial[:count]) if count > 1 else spatial[0]
    for block, before in zip(reversed(others), reversed(steps), strict=True):
        sch.compute_at(block, task, preserve_unit_loops=True)
        if _steps(sch, block) > _MAX_REPEATED * before:
            raise LoweringError(f"{sch.get(block).name_hint} would be computed again by each task")
    is_large = sum(steps) + _steps(sch, out) >= MIN_PARALLEL_STEPS
    if choose("is_parallel", (False, True), default=is_large):
        sch.parallel(task)
    vectors = choose("vectors", VECTORS, default=1)
    for block in (*others, out):
        vectorize_step(sch, block, task, vectors * machine.lanes)


def _steps(sch: Schedule, block: Block) -> int:
    return product(blocks.extents(sch, sch.get_loops(block)))

"""Copy between channel blocks and plain tensors, tile by tile.

One cache line of a blocked tensor holds a pixel of all channels of a block, and a
line of the plain one neighbouring pixels of a channel. So a task goes over all channels
of a block for a few pixels, while their lines lie in the first-level cache; channel by
channel, each line would be fetched as many times as a block has channels. Both ways
the vectors run along the pixels: so a channel that a last block lacks is one test for
a whole vector.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfuse._tvm import te
from tvmfuse.kernels import blocks
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE, Choose, Schedule
from tvmfuse.kernels.tiling import Machine, product

Tensor = Any  # te.Tensor

BLOCKED = "blocked"
"""Role of a copy into blocks, (n, channels / b, height, width, b)."""

_MIN_PARALLEL_ELEMENTS = 16384  # below this, starting threads costs more than it saves


def emit_plain(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Emit the copy of a blocked tensor into a plain one.

    Parameters
    ----------
    x : te.Tensor
        (n, channels / b, height, width, b).
    shape : sequence of int
        (n, channels, height, width), or (n, channels, width) of a row.

    Returns
    -------
    te.Tensor
        ``shape``.
    """
    block = int(x.shape[4])

    def value(n: Any, c: Any, *axes: Any) -> Any:
        h, w = axes if len(axes) == 2 else (0, *axes)
        return x[n, c // block, h, w, c % block]

    attrs = {FAMILY: "relayout", ROLE: "anchor", TILE: [min(block, int(shape[1]))]}
    return te.compute(tuple(shape), value, name="from_blocked", attrs=attrs)


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule the copy.

    Raises
    ------
    LoweringError
        Something else is computed with it.
    """
    out = blocks.sole_output(sch)
    loops = sch.get_loops(out)
    elements = product(blocks.extents(sch, loops))
    if blocks.role(sch, out) == BLOCKED:
        n, c_block, *rows, w, c_in = loops
    else:
        n, c, *rows, w = loops
        c_block, c_in = blocks.split(sch, c, [None, blocks.tile(sch, out)[0]])
    vectors, lanes = [], w
    counts = tuple(n for n in (1, 2, 4) if n * machine.lanes <= blocks.extent(sch, w))
    if counts:
        width = choose("vectors", counts, default=1) * machine.lanes
        rest, lanes = blocks.split_with_tail(sch, w, width)
        vectors = [rest]
    sch.reorder(n, c_block, *rows, *vectors, c_in, lanes)
    task = sch.fuse(n, c_block, *rows[:1])
    if choose("is_parallel", (False, True), default=elements >= _MIN_PARALLEL_ELEMENTS):
        sch.parallel(task)
    if blocks.role(sch, out) == BLOCKED:
        sch.unroll(c_in)
    sch.vectorize(lanes)

"""Elementwise chains and whatever only moves elements: one pass over the output."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx, blocks
from tvmfuse.kernels.blocks import Block, Choose, Schedule
from tvmfuse.kernels.tiling import Machine, product

Tensor = Any  # te.Tensor

_MIN_PARALLEL_ELEMENTS = 16384  # below this, starting threads costs more than it saves
_TILE = 16  # floats of one cache line
_MIN_TRANSPOSED = 4  # fewer neighbours than these share no line worth a tile


def emit_prelu(x: Tensor, slope: Tensor) -> Tensor:
    """Emit a PReLU.

    Parameters
    ----------
    x : te.Tensor
        (n, channels / b, height, width, b), float32.
    slope : te.Tensor
        (1, channels / b, 1, 1, b).

    Returns
    -------
    te.Tensor
        Shape of ``x``.
    """

    def value(*i: Any) -> Any:
        n, c, h, w, lane = i
        below = slope[0, c, 0, 0, lane]
        return approx.bind(x[n, c, h, w, lane], lambda x: tirx.Select(x < 0, x * below, x))

    return te.compute(x.shape, value, name="prelu")


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule a kernel without reductions.

    Every output is written in one pass, several ones in the same loops where
    their shapes agree.

    Raises
    ------
    LoweringError
        An intermediate result has to be kept in memory.
    """
    blocks.inline_all(sch)
    first, *others = blocks.outputs(sch)
    loops = _flattened(sch, first)
    if not loops:
        return
    total = product(blocks.extents(sch, loops))
    is_large = total >= _MIN_PARALLEL_ELEMENTS
    across = None if others else _transposed_loop(sch, first)
    if across is not None:
        row = _by_tiles(sch, loops, across, choose)
        if choose("is_parallel", (False, True), default=is_large):
            sch.parallel(row)
        return
    *outer, last = loops
    if blocks.extent(sch, last) >= machine.lanes:
        options = tuple(v for v in (1, 2, 4) if v * machine.lanes <= blocks.extent(sch, last))
        vectors = choose("vectors", options, default=1)
        rest, lanes = blocks.split_with_tail(sch, last, vectors * machine.lanes)
        outer, vector = [*outer, rest], [lanes]
    else:
        outer, vector = [*outer, last], []
    row = sch.fuse(*outer[:-1]) if len(outer) > 2 else outer[0]
    for other in others:
        sch.reverse_compute_at(other, row)
    if choose("is_parallel", (False, True), default=is_large):
        sch.parallel(row)
    for loop in vector:
        sch.vectorize(loop)


def _transposed_loop(sch: Schedule, block: Block) -> Any | None:
    """Return the loop along which an operand's neighbours lie, where it is not the last one.

    Reading such an operand in the order of the result takes one element of each cache line.
    """
    statement, loops = sch.get(block), sch.get_loops(block)
    axes = list(statement.iter_vars)
    if len(axes) != len(loops) or len(loops) < 2:
        return None
    for read in statement.reads:
        inner = read.region[-1].min if read.region else None
        place = next((i for i, axis in enumerate(axes[:-1]) if axis.var.same_as(inner)), None)
        crosses = any(axes[-1].var.same_as(part.min) for part in list(read.region)[:-1])
        if place is not None and crosses:
            sizes = blocks.extents(sch, [loops[place], loops[-1]])
            return loops[place] if min(sizes) >= _MIN_TRANSPOSED else None
    return None


def _by_tiles(sch: Schedule, loops: list[Any], across: Any, choose: Choose) -> Any:
    """Move square tiles, so that every cache line is read while it is there."""
    size = choose("tile", (8, 16, 32), default=_TILE)
    others = [loop for loop in loops[:-1] if not blocks.same_loop(sch, loop, across)]
    row_tile, row = blocks.split(sch, across, [None, size])
    column_tile, column = blocks.split_with_tail(sch, loops[-1], size)
    sch.reorder(*others, row_tile, column_tile, row, column)
    sch.unroll(column)
    return sch.fuse(*others, row_tile) if others else row_tile


def _flattened(sch: Schedule, block: Block) -> list[Any]:
    """Return the loops of ``block``, fused to one where it reads where it writes."""
    loops = sch.get_loops(block)
    blocks.extents(sch, loops)  # refuses symbolic ones
    if len(loops) > 1 and len(blocks.outputs(sch)) == 1 and _is_pointwise(sch, block):
        return [sch.fuse(*loops)]
    return list(loops)


def _is_pointwise(sch: Schedule, block: Block) -> bool:
    statement = sch.get(block)
    (write,) = statement.writes
    wanted = [str(part.min) for part in write.region]
    shape = [int(d) for d in write.source.ty.shape]
    return all(
        [str(part.min) for part in read.region] == wanted
        and [int(d) for d in read.source.ty.shape] == shape
        for read in statement.reads
    )

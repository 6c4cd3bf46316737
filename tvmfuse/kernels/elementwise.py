"""Elementwise chains and whatever only moves elements: one pass over the output."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.errors import LoweringError
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
    outputs = blocks.outputs(sch)
    loops = sch.get_loops(outputs[0])
    if not loops:
        return
    total = product(blocks.extents(sch, loops))  # refuses symbolic ones
    across = None if len(outputs) > 1 else _transposed_loop(sch, outputs[0])
    if across is not None:
        row, lanes = _by_tiles(sch, loops, across, choose), list[Any]()
    else:
        row, lanes = _by_vectors(sch, outputs, machine, choose)
    if choose("is_parallel", (False, True), default=total >= _MIN_PARALLEL_ELEMENTS):
        sch.parallel(row)
    for loop in lanes:
        sch.vectorize(loop)


def _by_vectors(
    sch: Schedule, outputs: list[Block], machine: Machine, choose: Choose
) -> tuple[Any, list[Any]]:
    """Compute all results in the same loops; return the outer one and those to vectorise.

    Raises
    ------
    LoweringError
        One result is read by another one elsewhere than where that is written.
    """
    is_flat = all(_is_pointwise(sch, block) for block in outputs)
    loops = [list(sch.get_loops(block)) for block in outputs]
    if is_flat:
        loops = [[sch.fuse(*own)] if len(own) > 1 else own for own in loops]
    last = blocks.extent(sch, loops[0][-1])
    rows: list[Any] = []
    lanes: list[Any] = []
    if last >= machine.lanes:
        options = tuple(v for v in (1, 2, 4) if v * machine.lanes <= last)
        width = choose("vectors", options, default=1) * machine.lanes
        split = [blocks.split(sch, own[-1], [None, width]) for own in loops]
        loops = [[*own[:-1], rest] for own, (rest, _) in zip(loops, split, strict=True)]
        lanes = [vector for _, vector in split]
    for *outer, inner in loops:
        rows.append(sch.fuse(*outer) if len(outer) > 1 else (outer or [inner])[0])
    row = rows[0]
    if len(rows) > 1:
        _require_same_place(sch, outputs)
        row = sch.merge(*rows)
    if lanes:
        inner = [row] if len(loops[0]) == 1 else [own[-1] for own in loops]
        for rest in inner:
            blocks.mark_tail(sch, rest, last, width)
        if is_flat or last % width == 0:
            blocks.stream(sch, row, outputs[0], choose)
    return row, lanes


def _require_same_place(sch: Schedule, outputs: list[Block]) -> None:
    results = {sch.get(block).writes[0].source for block in outputs}
    for block in map(sch.get, outputs):
        written = [str(part.min) for part in block.writes[0].region]
        for read in block.reads:
            if read.source in results and [str(part.min) for part in read.region] != written:
                raise LoweringError("a result is read elsewhere than where it is written")


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
    """Move square tiles, so that every cache line is read while it is there.

    The vectors are those of the result: LLVM would take those of the operand, and scatter them.
    """
    size = choose("tile", (8, 16, 32), default=_TILE)
    others = [loop for loop in loops[:-1] if not blocks.same_loop(sch, loop, across)]
    is_whole = blocks.extent(sch, loops[-1]) % size == 0
    row_tile, row = blocks.split(sch, across, [None, size])
    column_tile, column = blocks.split_with_tail(sch, loops[-1], size)
    sch.reorder(*others, row_tile, column_tile, row, column)
    blocks.vectorize(sch, column, min(size, _TILE))
    # A ragged tile is code of its own only where its loop stands by itself.
    tiles = [*others, row_tile, column_tile] if is_whole else [*others, row_tile]
    return sch.fuse(*tiles) if len(tiles) > 1 else tiles[0]


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

"""Schedule matrix products: tasks, tiles, and what each task computes first."""

from __future__ import annotations

import math
from collections.abc import Sequence

from tvmfuse.errors import LoweringError
from tvmfuse.kernels import blocks, reading
from tvmfuse.kernels.blocks import Block, Choose, Loop, Schedule
from tvmfuse.kernels.gemm import direct, dots, narrow
from tvmfuse.kernels.steps import compute_first
from tvmfuse.kernels.tiling import (
    GemmTile,
    Machine,
    Tasks,
    choose_tasks,
    divisors,
)


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule matrix products of the same rows with their elementwise epilogue.

    Raises
    ------
    LoweringError
        The products differ in their tiles, or the epilogue cannot be computed within one.
    """
    blocks.inline_all(sch)
    few = blocks.find(sch, direct.DIRECT)
    if few is not None:
        direct.schedule(sch, few, machine, choose)
        return
    stored = blocks.find(sch, narrow.NARROW)
    if stored is not None:
        narrow.schedule(sch, stored, machine, choose)
        return
    anchors, out = blocks.find_all(sch, "anchor"), blocks.sole_output(sch)
    tile = _tile(sch, anchors)
    *batch, i, j = reading.loops_as_read(sch, out, anchors[0])
    tasks = _tasks(sch, anchors, tile, machine, choose)
    j_task, j_tile, j_in = blocks.split(sch, j, [tasks.columns, None, tile.columns])
    i_task, i_tile, i_in = blocks.split(sch, i, [tasks.rows, None, tile.rows])
    packings = blocks.find_all(sch, "pack")
    # Panels that the kernel packs itself are swept by all rows before the next one.
    orders = ("columns",) if packings else ("columns", "rows")
    outer = choose("outer_tiles", orders, default="columns")
    tiles = (j_tile, i_tile) if outer == "columns" else (i_tile, j_tile)
    sch.reorder(*batch, j_task, i_task, *tiles, i_in, j_in)
    for anchor in reversed(anchors):
        sch.compute_at(anchor, tiles[-1], preserve_unit_loops=True)
    task = blocks.parallel(sch, [*batch, j_task, i_task], anchors[0], choose)
    for packing in packings:
        sch.compute_at(packing, j_tile, preserve_unit_loops=True)
        blocks.vectorize(sch, sch.get_loops(packing)[-1], machine.lanes)
    compute_first(sch, [*anchors, *packings, out], task, machine.lanes)
    for number, anchor in enumerate(anchors):
        name = f"unroll_{number}" if number else "unroll"
        register_tile(sch, anchor, tiles[-1], machine, choose, name=name)
    sch.unroll(i_in)
    blocks.vectorize(sch, j_in, machine.lanes)


def _tile(sch: Schedule, anchors: Sequence[Block]) -> GemmTile:
    sizes = {blocks.tile(sch, anchor) for anchor in anchors}
    if len(sizes) != 1:
        raise LoweringError(f"products in one kernel need equal tiles, but found {sorted(sizes)}")
    return GemmTile(*sizes.pop())


def register_tile(
    sch: Schedule,
    anchor: Block,
    below: Loop,
    machine: Machine,
    choose: Choose,
    *,
    name: str = "unroll",
) -> None:
    """Keep the accumulators of a product in registers through its whole reduction.

    Parameters
    ----------
    sch : Schedule
        The schedule.
    anchor : Block
        The product, computed below one tile.
    below : Loop
        The innermost loop over tiles.
    machine : Machine
        The device.
    choose : callable
        Decides how far the reduction is unrolled.
    name : str
        Name of that decision.
    """
    spatial, (k, *part) = blocks.inner_loops(sch, anchor, below)
    *_, rows, columns = spatial
    body = math.prod(blocks.extents(sch, spatial)) // machine.lanes
    dot = dots.of(sch, anchor)
    options = dots.unrollings(blocks.extent(sch, k), body, dot)
    unroll = choose(name, options, default=max(d for d in options if d <= 4))
    k_outer, k_inner = blocks.split(sch, k, [None, unroll])
    sch.unroll(rows)
    sch.unroll(k_inner)
    if dot:
        sch.reorder(k_outer, k_inner, rows, columns, *part)
        dots.apply(sch, anchor, k_outer, columns, dot)
    else:
        sch.reorder(k_outer, k_inner, *part, rows, columns)
        for loop in part:
            sch.unroll(loop)
        blocks.vectorize(sch, columns, machine.lanes)
        sch.decompose_reduction(anchor, k_outer)
        sch.set_scope(anchor, 0, "local")


def _tasks(
    sch: Schedule, anchors: Sequence[Block], tile: GemmTile, machine: Machine, choose: Choose
) -> Tasks:
    *batch, rows, columns = blocks.axis_extents(sch, anchors[0], reduced=False)
    words = blocks.axis_extents(sch, anchors[0], reduced=True)[0]  # of four bytes
    row_tiles, column_tiles = rows // tile.rows, columns // tile.columns
    best = choose_tasks(
        column_tiles,
        row_tiles,
        machine,
        column_bytes=4 * words * columns * len(anchors),
        row_bytes=4 * words * rows,
        outer=math.prod(batch),
    )
    return Tasks(
        choose("column_tasks", divisors(column_tiles), default=best.columns),
        choose("row_tasks", divisors(row_tiles), default=best.rows),
    )

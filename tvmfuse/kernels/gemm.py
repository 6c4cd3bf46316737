"""Matrix products by a register tile over packed columns.

The right operand lies in panels ``(columns / NR, K, NR)``: one step of the
reduction reads ``NR`` neighbouring floats. A constant weight is packed when
compiling; an operand that is known only at run time is packed by the kernel
itself, one panel per task. BLIS, MLAS and XNNPACK do the same; the tile comes
from :func:`tiling.gemm_tile`.

A ragged last row tile is computed whole: it reads its missing rows from the
last real one (clamped), and only the store is bounded. A predicate inside the
reduction would cost two thirds of the speed.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmfuse._tvm import te
from tvmfuse.kernels import blocks
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE, Block, Choose, Loop, Schedule
from tvmfuse.kernels.tiling import (
    GemmTile,
    Machine,
    Tasks,
    ceil_div,
    choose_tasks,
    divisors,
    gemm_tile,
    round_up,
    unrollings,
)

Tensor = Any  # te.Tensor


def pack(weight: np.ndarray, columns: int) -> np.ndarray:
    """Lay a constant right operand out in panels.

    Parameters
    ----------
    weight : np.ndarray
        (K, N).
    columns : int
        Width NR of one panel; missing columns of the last one become zero.

    Returns
    -------
    np.ndarray
        (N / NR rounded up, K, NR), contiguous.
    """
    k, n = weight.shape
    panels = ceil_div(n, columns)
    padded = np.zeros((k, panels * columns), weight.dtype)
    padded[:, :n] = weight
    return np.ascontiguousarray(padded.reshape(k, panels, columns).transpose(1, 0, 2))


def emit_packed(x: Tensor, panels: Tensor, n: int, machine: Machine) -> Tensor:
    """Emit ``x @ weight`` for a packed constant weight.

    Parameters
    ----------
    x : te.Tensor
        (..., M, K), float32.
    panels : te.Tensor
        (N / NR, K, NR) as :func:`pack` makes it.
    n : int
        Columns of the result.
    machine : Machine
        The device.

    Returns
    -------
    te.Tensor
        (..., M, N).
    """
    *batch, m, k = (int(d) for d in x.shape)
    columns = int(panels.shape[2])
    rows = rows_for(m, columns, machine)
    axis = te.reduce_axis((0, k), "k")

    def product(*index: Any) -> Any:
        *g, i, j = index
        left = x[(*g, _clamped(i, m, rows), axis)]
        return te.sum(left * panels[j // columns, axis, j % columns], axis)

    shape = (*batch, round_up(m, rows), int(panels.shape[0]) * columns)
    return _cropped(te.compute(shape, product, name="matmul", attrs=_anchor(rows, columns)), m, n)


def emit_batched(a: Tensor, b: Tensor, machine: Machine, *, transposed: bool = False) -> Tensor:
    """Emit ``a @ b`` for operands that are known only at run time.

    Parameters
    ----------
    a : te.Tensor
        (..., M, K), float32.
    b : te.Tensor
        (..., K, N), or (..., N, K) where transposed. Leading axes broadcast.
    machine : Machine
        The device.
    transposed : bool
        Whether ``b`` holds its columns as rows.

    Returns
    -------
    te.Tensor
        (..., M, N).
    """
    m, k = (int(d) for d in a.shape[-2:])
    n = int(b.shape[-2] if transposed else b.shape[-1])
    batch = _broadcast_shape(a.shape[:-2], b.shape[:-2])
    tile = gemm_tile(m, n, machine)
    panels, columns = ceil_div(n, tile.columns), tile.columns

    def column(*index: Any) -> Any:
        *g, panel, row, lane = index
        j = panel * columns + lane
        at = j if panels * columns == n else te.min(j, n - 1)
        matrix = (at, row) if transposed else (row, at)
        return b[(*_broadcast_index(b.shape[:-2], g), *matrix)]

    attrs = {FAMILY: "gemm", ROLE: "pack"}
    packed = te.compute((*batch, panels, k, columns), column, name="pack", attrs=attrs)
    axis = te.reduce_axis((0, k), "k")

    def product(*index: Any) -> Any:
        *g, i, j = index
        row = (_clamped(i, m, tile.rows), axis)
        left = a[(*_broadcast_index(a.shape[:-2], g), *row)]
        return te.sum(left * packed[(*g, j // columns, axis, j % columns)], axis)

    shape = (*batch, round_up(m, tile.rows), panels * columns)
    anchor = _anchor(tile.rows, columns)
    return _cropped(te.compute(shape, product, name="matmul", attrs=anchor), m, n)


def _anchor(rows: int, columns: int) -> dict[str, Any]:
    return {FAMILY: "gemm", ROLE: "anchor", TILE: [rows, columns]}


def _cropped(result: Tensor, m: int, n: int) -> Tensor:
    return te.compute((*result.shape[:-2], m, n), lambda *i: result[i], name="crop")


def _broadcast_shape(a: Any, b: Any) -> tuple[int, ...]:
    return np.broadcast_shapes(tuple(int(d) for d in a), tuple(int(d) for d in b))


def _broadcast_index(shape: Any, index: Any) -> tuple[Any, ...]:
    lead = len(index) - len(shape)
    return tuple(0 if int(d) == 1 else index[lead + i] for i, d in enumerate(shape))


def rows_for(m: int, columns: int, machine: Machine) -> int:
    """Return the rows of a tile for panels of given width."""
    limit = machine.max_rows(columns // machine.lanes)
    tiles = ceil_div(m, limit)
    return ceil_div(m, tiles)


def _clamped(i: Any, m: int, rows: int) -> Any:
    return i if m % rows == 0 else te.min(i, m - 1)


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule a matrix product with its elementwise epilogue.

    Raises
    ------
    LoweringError
        The epilogue cannot be computed within the register tile.
    """
    blocks.inline_all(sch)
    anchor, out = blocks.find(sch, "anchor"), blocks.sole_output(sch)
    tile = GemmTile(*blocks.tile(sch, anchor))
    *batch, i, j = blocks.loops_as_read(sch, out, anchor)
    tasks = _tasks(sch, anchor, tile, machine, choose)
    j_task, j_tile, j_in = blocks.split(sch, j, [tasks.columns, None, tile.columns])
    i_task, i_tile, i_in = blocks.split(sch, i, [tasks.rows, None, tile.rows])
    packing = blocks.find(sch, "pack")
    # Panels that the kernel packs itself are swept by all rows before the next one.
    orders = ("columns", "rows") if packing is None else ("columns",)
    outer = choose("outer_tiles", orders, default="columns")
    tiles = (j_tile, i_tile) if outer == "columns" else (i_tile, j_tile)
    sch.reorder(*batch, j_task, i_task, *tiles, i_in, j_in)
    sch.compute_at(anchor, tiles[-1], preserve_unit_loops=True)
    blocks.parallel(sch, [*batch, j_task, i_task], anchor, choose)
    if packing is not None:
        sch.compute_at(packing, j_tile, preserve_unit_loops=True)
        blocks.vectorize(sch, sch.get_loops(packing)[-1], machine.lanes)
    register_tile(sch, anchor, tiles[-1], machine, choose)
    sch.unroll(i_in)
    blocks.vectorize(sch, j_in, machine.lanes)


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
    spatial, (k,) = blocks.inner_loops(sch, anchor, below)
    *_, rows, columns = spatial
    body = math.prod(blocks.extents(sch, spatial)) // machine.lanes
    options = unrollings(blocks.extent(sch, k), body)
    unroll = choose(name, options, default=max(d for d in options if d <= 4))
    k_outer, k_inner = blocks.split(sch, k, [None, unroll])
    sch.reorder(k_outer, k_inner, rows, columns)
    blocks.vectorize(sch, columns, machine.lanes)
    sch.unroll(rows)
    sch.unroll(k_inner)
    sch.decompose_reduction(anchor, k_outer)
    sch.set_scope(anchor, 0, "local")


def _tasks(sch: Schedule, anchor: Block, tile: GemmTile, machine: Machine, choose: Choose) -> Tasks:
    axes = [int(axis.dom.extent) for axis in blocks.iter_vars(sch, anchor)]
    *batch, rows, columns, k = axes
    row_tiles, column_tiles = rows // tile.rows, columns // tile.columns
    best = choose_tasks(
        column_tiles,
        row_tiles,
        machine,
        column_bytes=4 * k * columns,
        row_bytes=4 * k * rows,
        outer=int(np.prod(batch)) if batch else 1,
    )
    return Tasks(
        choose("column_tasks", divisors(column_tiles), default=best.columns),
        choose("row_tasks", divisors(row_tiles), default=best.rows),
    )

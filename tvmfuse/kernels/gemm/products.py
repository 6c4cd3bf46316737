"""Emit matrix products: what is read from where, and into which tiles it is cut."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE
from tvmfuse.kernels.tiling import Machine, ceil_div, gemm_tile, round_up

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


def emit_packed(
    x: Tensor,
    panels: Tensor,
    n: int,
    machine: Machine,
    *,
    m: int | None = None,
    out_dtype: str | None = None,
) -> Tensor:
    """Emit ``x @ weight`` for a packed constant weight, summed in float32.

    Parameters
    ----------
    x : te.Tensor
        (..., M, K) of any float type, or what :func:`prepared` made of it. Half-precision
        rows are converted once per task, half-precision panels as they are read.
    panels : te.Tensor
        (N / NR, K, NR) as :func:`pack` makes it, of any float type.
    n : int
        Columns of the result.
    machine : Machine
        The device.
    m : int, optional
        Rows of the result where ``x`` has more, as prepared rows do.
    out_dtype : str, optional
        Type of the result; that of ``x`` where not given.

    Returns
    -------
    te.Tensor
        (..., M, N).
    """
    out_dtype = out_dtype or str(x.dtype)
    m = int(x.shape[-2]) if m is None else m
    columns = int(panels.shape[2])
    rows = rows_for(m, columns, machine)
    x = _in_float32(x, rows)
    *batch, stored, k = (int(d) for d in x.shape)
    axis = te.reduce_axis((0, k), "k")

    def product(*index: Any) -> Any:
        *g, i, j = index
        left = x[(*g, _clamped(i, stored, rows), axis)]
        return te.sum(left * _float32(panels[j // columns, axis, j % columns]), axis)

    shape = (*batch, round_up(m, rows), int(panels.shape[0]) * columns)
    result = te.compute(shape, product, name="matmul", attrs=_anchor(rows, columns))
    return _cropped(result, m, n, out_dtype)


def emit_batched(
    a: Tensor,
    b: Tensor,
    machine: Machine,
    *,
    transposed: bool = False,
    out_dtype: str | None = None,
) -> Tensor:
    """Emit ``a @ b`` for operands that are known only at run time, summed in float32.

    Parameters
    ----------
    a : te.Tensor
        (..., M, K) of any float type.
    b : te.Tensor
        (..., K, N), or (..., N, K) where transposed. Leading axes broadcast.
    machine : Machine
        The device.
    transposed : bool
        Whether ``b`` holds its columns as rows.
    out_dtype : str, optional
        Type of the result; that of ``a`` where not given.

    Returns
    -------
    te.Tensor
        (..., M, N).
    """
    out_dtype = out_dtype or str(a.dtype)
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
        return _float32(b[(*_broadcast_index(b.shape[:-2], g), *matrix)])

    attrs = {FAMILY: "gemm", ROLE: "pack"}
    packed = te.compute((*batch, panels, k, columns), column, name="pack", attrs=attrs)
    axis = te.reduce_axis((0, k), "k")
    a = _in_float32(a, tile.rows)
    stored = int(a.shape[-2])

    def product(*index: Any) -> Any:
        *g, i, j = index
        row = (_clamped(i, stored, tile.rows), axis)
        left = a[(*_broadcast_index(a.shape[:-2], g), *row)]
        return te.sum(left * packed[(*g, j // columns, axis, j % columns)], axis)

    shape = (*batch, round_up(m, tile.rows), panels * columns)
    anchor = _anchor(tile.rows, columns)
    return _cropped(te.compute(shape, product, name="matmul", attrs=anchor), m, n, out_dtype)


def prepared(
    x: Tensor,
    value: Callable[..., Any],
    rows: int,
    *,
    length: int | None = None,
    dtype: str = "float32",
) -> Tensor:
    """Emit rows that each task computes once, into scratch, before it multiplies them.

    Parameters
    ----------
    x : te.Tensor
        (..., M, K): its shape is that of the rows.
    value : callable
        Returns the element at given indices, of type ``dtype``.
    rows : int
        Rows of a tile, see :func:`rows_for`.
    length : int, optional
        Length of a row with zeros at its end; K where not given.
    dtype : str
        Type of the elements.

    Returns
    -------
    te.Tensor
        (..., M rounded up to whole tiles, length): rows behind the last one repeat it.
    """
    *batch, m, k = (int(d) for d in x.shape)
    length = k if length is None else length

    def element(*index: Any) -> Any:
        *g, i, at = index
        row = (*g, _clamped(i, m, rows))
        if length == k:
            return value(*row, at)
        inside = value(*row, te.min(at, k - 1))
        return tirx.Select(at < k, inside, tirx.const(0, dtype))

    shape = (*batch, round_up(m, rows), length)
    return te.compute(shape, element, name="rows", attrs={FAMILY: "gemm", ROLE: "rows"})


def _anchor(rows: int, columns: int) -> dict[str, Any]:
    return {FAMILY: "gemm", ROLE: "anchor", TILE: [rows, columns]}


def _cropped(result: Tensor, m: int, n: int, dtype: str) -> Tensor:
    shape = (*result.shape[:-2], m, n)
    return te.compute(shape, lambda *i: approx.cast(result[i], dtype), name="crop")


def _in_float32(x: Tensor, rows: int) -> Tensor:
    """Return ``x`` in float32: itself, or rows that each task converts first."""
    if str(x.dtype) == "float32":
        return x
    return prepared(x, lambda *i: _float32(x[i]), rows)


def _float32(x: Any) -> Any:
    return approx.cast(x, "float32")


def rows_for(m: int, columns: int, machine: Machine) -> int:
    """Return the rows of a tile for panels of given width."""
    limit = machine.max_rows(columns // machine.lanes)
    tiles = ceil_div(m, limit)
    return ceil_div(m, tiles)


def _clamped(i: Any, m: int, rows: int) -> Any:
    return i if m % rows == 0 else te.min(i, m - 1)


def _broadcast_shape(a: Any, b: Any) -> tuple[int, ...]:
    return np.broadcast_shapes(tuple(int(d) for d in a), tuple(int(d) for d in b))


def _broadcast_index(shape: Any, index: Any) -> tuple[Any, ...]:
    lead = len(index) - len(shape)
    return tuple(0 if int(d) == 1 else index[lead + i] for i, d in enumerate(shape))

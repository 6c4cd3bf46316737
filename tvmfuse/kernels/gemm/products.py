"""Emit matrix products: what is read from where, and into which tiles it is cut."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
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
    lead: Sequence[int] | None = None,
    rows: int | None = None,
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
    lead : sequence of int, optional
        (..., M) where ``x`` is prepared.
    rows : int, optional
        Rows of a tile; those of :func:`rows_for` where not given.
    out_dtype : str, optional
        Type of the result; that of ``x`` where not given.

    Returns
    -------
    te.Tensor
        (..., M, N). The rows of all batches are those of one product.
    """
    out_dtype = out_dtype or str(x.dtype)
    columns = int(panels.shape[2])
    if lead is None:
        lead = [int(d) for d in x.shape[:-1]]
        rows = rows or rows_for(math.prod(lead), columns, machine)
        x = _widened(flattened(x), rows, "float32")
    rows = rows or rows_for(math.prod(lead), columns, machine)
    stored, k = (int(d) for d in x.shape)
    axis = te.reduce_axis((0, k), "k")

    def product(i: Any, j: Any) -> Any:
        left = x[_clamped(i, stored, rows), axis]
        return te.sum(left * _float32(panels[j // columns, axis, j % columns]), axis)

    shape = (round_up(stored, rows), int(panels.shape[0]) * columns)
    result = te.compute(shape, product, name="matmul", attrs=_anchor(rows, columns))
    return unflattened(result, lead, n, out_dtype)


def flattened(x: Tensor) -> Tensor:
    """Return the rows (..., K) of a tensor as those of one matrix."""
    *lead, k = (int(d) for d in x.shape)
    if len(lead) == 1:
        return x
    strides = [math.prod(lead[i + 1 :]) for i in range(len(lead))]

    def element(row: Any, at: Any) -> Any:
        inner = [row // s % d for s, d in zip(strides[1:], lead[1:], strict=True)]
        return x[(row // strides[0], *inner, at)]

    return te.compute((math.prod(lead), k), element, name="flat")


def whole_tiles(x: Tensor, rows: int) -> Tensor:
    """Return a matrix whose last row is repeated until its tiles of ``rows`` are whole."""
    m, k = (int(d) for d in x.shape)
    shape = (round_up(m, rows), k)
    return te.compute(shape, lambda i, at: x[_clamped(i, m, rows), at], name="tiles")


def unflattened(result: Tensor, lead: Sequence[int], n: int, dtype: str) -> Tensor:
    """Return the first ``n`` columns of a matrix as a tensor (..., n) of given leading axes."""

    def element(*index: Any) -> Any:
        row = index[0]
        for i, extent in zip(index[1:-1], lead[1:], strict=True):
            row = row * extent + i
        return approx.cast(result[row, index[-1]], dtype)

    return te.compute((*lead, n), element, name="crop")


def emit_batched(
    a: Tensor,
    b: Tensor,
    machine: Machine,
    *,
    transposed: bool = False,
    out_dtype: str | None = None,
) -> Tensor:
    """Emit ``a @ b`` for operands that are known only at run time.

    Sums are int32 where the result is, else float32.

    Parameters
    ----------
    a : te.Tensor
        (..., M, K), floats or integers.
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
    sums = "int32" if out_dtype == "int32" else "float32"
    n = int(b.shape[-2] if transposed else b.shape[-1])
    lead = (*_broadcast_shape(a.shape[:-2], b.shape[:-2]), int(a.shape[-2]))
    if len(lead) == len(a.shape) - 1 and math.prod(int(d) for d in b.shape[:-2]) == 1:
        result = _product(flattened(a), _matrix(b), machine, transposed=transposed, dtype=sums)
        return unflattened(result, lead, n, out_dtype)
    result = _product(a, b, machine, transposed=transposed, dtype=sums)
    return te.compute((*lead, n), lambda *i: approx.cast(result[i], out_dtype), name="crop")


def _product(a: Tensor, b: Tensor, machine: Machine, *, transposed: bool, dtype: str) -> Tensor:
    """Return ``a @ b`` in whole tiles, with ``b`` packed by the kernel."""
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
        return approx.cast(b[(*_broadcast_index(b.shape[:-2], g), *matrix)], dtype)

    attrs = {FAMILY: "gemm", ROLE: "pack"}
    packed = te.compute((*batch, panels, k, columns), column, name="pack", attrs=attrs)
    axis = te.reduce_axis((0, k), "k")
    a = _widened(a, tile.rows, dtype)
    stored = int(a.shape[-2])

    def product(*index: Any) -> Any:
        *g, i, j = index
        row = (_clamped(i, stored, tile.rows), axis)
        left = a[(*_broadcast_index(a.shape[:-2], g), *row)]
        return te.sum(left * packed[(*g, j // columns, axis, j % columns)], axis)

    shape = (*batch, round_up(m, tile.rows), panels * columns)
    return te.compute(shape, product, name="matmul", attrs=_anchor(tile.rows, columns))


def _matrix(b: Tensor) -> Tensor:
    lead = (0,) * (len(b.shape) - 2)
    if not lead:
        return b
    return te.compute(tuple(b.shape[-2:]), lambda *i: b[(*lead, *i)], name="matrix")


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
        (..., M, K): its shape is that of the rows; for :func:`emit_packed`, whose rows are
        those of one matrix, what :func:`flattened` returns.
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


def _widened(x: Tensor, rows: int, dtype: str) -> Tensor:
    """Return ``x`` as ``dtype``: itself, or rows that each task converts first."""
    if str(x.dtype) == dtype:
        return x
    return prepared(x, lambda *i: approx.cast(x[i], dtype), rows, dtype=dtype)


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

"""Products of 8-bit integers by a packed constant weight, exact in int32.

Rows are copied into scratch once per task, as the instruction wants them; the weight
is packed in words of the instruction (:mod:`.dots`). Where rows are signed but the
instruction wants them unsigned (or the reverse), they are shifted by 128 and the sums of
the weight's columns take that off again. All of it is arithmetic modulo 2^32, as int32
is, so no shift can overflow anything that would not have overflowed without it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE
from tvmfuse.kernels.gemm import dots
from tvmfuse.kernels.gemm.dots import DOT
from tvmfuse.kernels.gemm.products import flattened, prepared, rows_for, unflattened
from tvmfuse.kernels.tiling import GemmTile, Machine, ceil_div, gemm_tile

Tensor = Any  # te.Tensor

_SHIFT = 128
_INTERMEDIATE = 1  # register, for products before they are added


@dataclass(frozen=True)
class IntegerPlan:
    """How a product of integers is computed.

    Parameters
    ----------
    dot : str
        Instruction, or "" for plain multiplications.
    group : int
        Neighbours of the sum that lie together.
    row_dtype, column_dtype : str
        Types of the prepared rows and of the panels.
    shift : int
        What is added to the rows so that they fit ``row_dtype``.
    """

    dot: str
    group: int
    row_dtype: str
    column_dtype: str
    shift: int = 0


def plan(x_dtype: str, weight_dtype: str, machine: Machine) -> IntegerPlan:
    """Choose how to multiply rows of ``x_dtype`` by a weight of ``weight_dtype``.

    Parameters
    ----------
    x_dtype : str
        ``int8`` or ``uint8``.
    weight_dtype : str
        ``int8`` or ``int16``.
    machine : Machine
        The device.
    """
    name = dots.for_columns(machine.dot, weight_dtype)
    if not name:
        return IntegerPlan("", 1, "int16", "int16")
    dot = dots.DOTS[name]
    shift = 0
    if dot.row_dtype in ("int8", "uint8") and dot.row_dtype != x_dtype:
        shift = _SHIFT if x_dtype == "int8" else -_SHIFT
    return IntegerPlan(name, dot.group, dot.row_dtype, dot.column_dtype, shift)


def tile(m: int, n: int, chosen: IntegerPlan, machine: Machine) -> GemmTile:
    """Choose the register tile of a product, see :func:`tiling.gemm_tile`."""
    machine = fitted(machine, chosen)
    columns = gemm_tile(m, n, machine).columns
    return GemmTile(rows_for(m, columns, machine), columns)


def fitted(machine: Machine, chosen: IntegerPlan) -> Machine:
    """Return the machine less the registers that an instruction without sums needs."""
    is_plain = not chosen.dot or not dots.DOTS[chosen.dot].adds
    return replace(machine, reserved=_INTERMEDIATE) if is_plain else machine


def pack_integers(weight: np.ndarray, columns: int, chosen: IntegerPlan) -> np.ndarray:
    """Lay an integer weight out in panels of words.

    Parameters
    ----------
    weight : np.ndarray
        (K, N).
    columns : int
        Width NR of one panel.
    chosen : IntegerPlan
        How it is multiplied.

    Returns
    -------
    np.ndarray
        (N / NR, K / group, NR, group), rounded up and filled with zeros.
    """
    k, n = weight.shape
    panels, words = ceil_div(n, columns), ceil_div(k, chosen.group)
    padded = np.zeros((words * chosen.group, panels * columns), chosen.column_dtype)
    padded[:k, :n] = weight
    parts = padded.reshape(words, chosen.group, panels, columns)
    return np.ascontiguousarray(parts.transpose(2, 0, 3, 1))


def column_sums(weight: np.ndarray) -> np.ndarray:
    """Return the sums of the columns of a weight (K, N) as int32 (N,)."""
    return weight.sum(axis=0, dtype=np.int32)


def emit_integers(
    x: Tensor, panels: Tensor, sums: Tensor | None, n: int, chosen: IntegerPlan, machine: Machine
) -> Tensor:
    """Emit ``x @ weight`` for 8-bit rows and a packed weight.

    Parameters
    ----------
    x : te.Tensor
        (..., M, K), int8 or uint8.
    panels : te.Tensor
        What :func:`pack_integers` returns.
    sums : te.Tensor or None
        What :func:`column_sums` returns; needed where ``chosen`` shifts the rows.
    n : int
        Columns of the result.
    chosen : IntegerPlan
        What :func:`plan` returned.
    machine : Machine
        The device.

    Returns
    -------
    te.Tensor
        (..., M, N), int32.
    """
    lead = [int(d) for d in x.shape[:-1]]
    panel_count, words, columns, group = (int(d) for d in panels.shape)
    tile_rows = rows_for(math.prod(lead), columns, fitted(machine, chosen))
    flat = flattened(x)
    rows = prepared(
        flat,
        lambda *i: shifted(flat[i], chosen),
        tile_rows,
        length=words * group,
        dtype=chosen.row_dtype,
    )
    word, part = te.reduce_axis((0, words), "word"), te.reduce_axis((0, group), "part")

    def product(i: Any, j: Any) -> Any:
        left = rows[i, word * group + part].astype("int32")
        right = panels[j // columns, word, j % columns, part].astype("int32")
        return te.sum(left * right, axis=[word, part])

    attrs = {FAMILY: "gemm", ROLE: "anchor", TILE: [tile_rows, columns], DOT: chosen.dot}
    shape = (int(rows.shape[0]), panel_count * columns)
    result = te.compute(shape, product, name="matmul", attrs=attrs)
    exact = unflattened(result, lead, n, "int32")
    if sums is None or not chosen.shift:
        return exact
    shift = tirx.const(chosen.shift, "int32")
    return te.compute(exact.shape, lambda *i: exact[i] - sums[i[-1]] * shift, name="unshifted")


def shifted(value: Any, chosen: IntegerPlan) -> Any:
    """Return an 8-bit operand as the instruction wants it."""
    if chosen.shift:
        value = value.astype("int32") + tirx.const(chosen.shift, "int32")
    return value.astype(chosen.row_dtype)

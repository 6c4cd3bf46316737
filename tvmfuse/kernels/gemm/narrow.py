"""Products by a weight of 4 or 8 bits, of which groups along the sum have a scale each.

Few rows wait for the weight, so it is read as it is stored: whole numbers are multiplied
and summed group by group, and only the sums are scaled, ``s * (x @ q) + b * sum(x)``.
Many rows wait for arithmetic: each task makes float32 panels of the columns that it
sweeps, as :mod:`.products` packs what is known only at run time.

llama.cpp and ONNX Runtime's MatMulNBits scale sums of groups as well; they quantise the
rows, too, which is not done here: the result is that of the dequantised weight.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse._tvm import te, tirx
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import approx, blocks, reading
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE, Block, Choose, Schedule
from tvmfuse.kernels.gemm.products import emit_packed, flattened, unflattened
from tvmfuse.kernels.rows import Rows, reduce, sums
from tvmfuse.kernels.steps import compute_first
from tvmfuse.kernels.tiling import Machine, ceil_div, divisors, task_counts

Tensor = Any  # te.Tensor
Weight = tuple[Tensor, Tensor, Tensor | None]  # bytes, scales, offsets

NARROW = "narrow"  # role of the sum of a group
SCALED = "scaled"  # role of the sum of scaled groups
_STEPS = 4  # bytes of a column that one step of the loop takes


@dataclass(frozen=True)
class Narrow:
    """How a weight (groups, group, n) of small integers is stored.

    Parameters
    ----------
    bits : int
        Of one number: 4 or 8. Two numbers of 4 bits share a byte, the first one low.
    columns : int
        Width of a panel.
    """

    bits: int
    columns: int

    @property
    def per_byte(self) -> int:
        """Numbers in one byte, neighbours along the sum."""
        return 8 // self.bits


def is_few(rows: int, machine: Machine) -> bool:
    """Whether a product of ``rows`` rows reads the weight as it is stored.

    The sums of more would fill registers that unpacked numbers need, and float32 panels
    are faster (12 of 32 registers measured on Zen 5).
    """
    return rows <= 3 * machine.registers // 8


def columns_for(rows: int, machine: Machine) -> int:
    """Return the width of a panel for a product of ``rows`` rows, few ones.

    A quarter of the registers holds sums: of 32, as many as hide the latency of two units;
    of 16, LLVM spills what it unpacks where there are more.
    """
    return machine.lanes * max(1, machine.registers // 4 // rows)


def pack_narrow(weight: np.ndarray, stored: Narrow) -> np.ndarray:
    """Lay a weight out in panels of bytes.

    Parameters
    ----------
    weight : np.ndarray
        (groups, group, n) of uint8, or int8 where a number has 8 bits.
    stored : Narrow
        How.

    Returns
    -------
    np.ndarray
        (n / columns, groups, group / numbers per byte, columns), rounded up with zeros.
    """
    groups, group, n = weight.shape
    panels = ceil_div(n, stored.columns)
    padded = np.zeros((groups, group, panels * stored.columns), weight.dtype)
    padded[:, :, :n] = weight
    parts = padded.reshape(groups, group // stored.per_byte, stored.per_byte, -1)
    bytes_ = parts[:, :, 0]
    for place in range(1, stored.per_byte):
        bytes_ = bytes_ | (parts[:, :, place] << (place * stored.bits))
    panelled = bytes_.reshape(*bytes_.shape[:2], panels, stored.columns)
    return np.ascontiguousarray(panelled.transpose(2, 0, 1, 3))


def pack_scales(scales: np.ndarray, columns: int) -> np.ndarray:
    """Lay a number for each group and column (groups, 1, n) out as (panels, groups, columns)."""
    groups, _, n = scales.shape
    panels = ceil_div(n, columns)
    padded = np.zeros((groups, panels * columns), scales.dtype)
    padded[:, :n] = scales[:, 0]
    return np.ascontiguousarray(padded.reshape(groups, panels, columns).transpose(1, 0, 2))


def emit_narrow(
    x: Tensor,
    weight: Weight,
    n: int,
    stored: Narrow,
    machine: Machine,
) -> Tensor:
    """Emit ``x @ (scale * weight + offset)``, summed in float32.

    Parameters
    ----------
    x : te.Tensor
        (..., M, K), float32.
    weight : tuple of te.Tensor
        What :func:`pack_narrow` returns, then scales and offsets as of :func:`pack_scales`;
        None for offsets of zero.
    n : int
        Columns of the result.
    stored : Narrow
        How the weight is stored.
    machine : Machine
        The device.

    Returns
    -------
    te.Tensor
        (..., M, N), float32.
    """
    lead = [int(d) for d in x.shape[:-1]]
    if not is_few(math.prod(lead), machine):
        return emit_packed(x, _panels(weight, stored), n, machine)
    result = _few_rows(flattened(x), weight, stored, machine)
    return unflattened(result, lead, n, "float32")


def _number(packed: Tensor, at: tuple[Any, Any, Any, Any], stored: Narrow, place: Any) -> Any:
    """Return one number of a byte as float32."""
    if stored.per_byte == 1:
        return approx.cast(packed[at], "float32")
    mask = tirx.const((1 << stored.bits) - 1, "int32")
    shifted = packed[at].astype("int32") >> (place * stored.bits).astype("int32")
    return (shifted & mask).astype("float32")


def _panels(weight: Weight, stored: Narrow) -> Tensor:
    """Return the weight as float32 panels, of which each task makes those that it sweeps."""
    packed, scale, offset = weight
    panels, groups, rows, columns = (int(d) for d in packed.shape)
    per_byte = stored.per_byte
    group = rows * per_byte

    def element(panel: Any, k: Any, lane: Any) -> Any:
        g = k // group
        at = (panel, g, k % group // per_byte, lane)
        number = _number(packed, at, stored, k % per_byte)
        scaled = number * scale[panel, g, lane]
        return scaled if offset is None else scaled + offset[panel, g, lane]

    shape, attrs = (panels, groups * group, columns), {FAMILY: "gemm", ROLE: "pack"}
    return te.compute(shape, element, name="dequantised", attrs=attrs)


def _few_rows(x: Tensor, weight: Weight, stored: Narrow, machine: Machine) -> Tensor:
    packed, scale, offset = weight
    rows = int(x.shape[0])
    panels, groups, bytes_, columns = (int(d) for d in packed.shape)
    per_byte, group = stored.per_byte, bytes_ * stored.per_byte
    byte, place = te.reduce_axis((0, bytes_), "byte"), te.reduce_axis((0, per_byte), "place")

    def product(i: Any, panel: Any, g: Any, lane: Any) -> Any:
        number = _number(packed, (panel, g, byte, lane), stored, place)
        return te.sum(x[i, g * group + byte * per_byte + place] * number, [byte, place])

    partial = te.compute(
        (rows, panels, groups, columns),
        product,
        name="matmul",
        attrs={FAMILY: "gemm", ROLE: NARROW, TILE: [rows, columns]},
    )
    whole = Rows((rows, groups, group), (2,))
    totals = reduce(
        lambda i, g, k: x[i, g * group + k], whole, sums(), machine.lanes, name="group_sums"
    )
    g = te.reduce_axis((0, groups), "group")

    def scaled(i: Any, j: Any) -> Any:
        at = (j // columns, g, j % columns)
        term = scale[at] * partial[i, at[0], g, at[2]]
        return te.sum(term if offset is None else term + offset[at] * totals[i, g, 0], g)

    attrs = {FAMILY: "gemm", ROLE: SCALED}
    return te.compute((rows, panels * columns), scaled, name="scaled", attrs=attrs)


def schedule(sch: Schedule, partial: Block, machine: Machine, choose: Choose) -> None:
    """Schedule a product of a few rows with its elementwise epilogue.

    Raises
    ------
    LoweringError
        The epilogue cannot be computed within a panel.
    """
    out, total = blocks.sole_output(sch), blocks.find(sch, SCALED)
    if total is None:
        raise LoweringError("the sums of its groups are not scaled here")
    _, columns = blocks.tile(sch, partial)
    i, j = reading.loops_as_read(sch, out, total)
    panels = ceil_div(blocks.extent(sch, j), columns)
    options, best = task_counts(panels, machine)
    tasks = choose("column_tasks", options, default=best)
    j_task, j_tile, j_in = blocks.split(sch, j, [tasks, None, columns])
    sch.reorder(j_task, j_tile, i, j_in)
    blocks.parallel(sch, [j_task], partial, choose)
    sch.compute_at(total, j_tile, preserve_unit_loops=True)
    spatial, (group,) = blocks.inner_loops(sch, total, j_tile)
    sch.reorder(group, *spatial)
    sch.compute_at(partial, group, preserve_unit_loops=True)
    compute_first(sch, [partial, total, out], j_task, machine.lanes)
    _register_tile(sch, partial, group, machine, choose)
    blocks.vectorize(sch, spatial[-1], machine.lanes)
    sch.decompose_reduction(total, group)
    sch.set_scope(total, 0, "local")
    blocks.vectorize_with_tail(sch, j_in, machine.lanes)


def _register_tile(
    sch: Schedule, partial: Block, below: Any, machine: Machine, choose: Choose
) -> None:
    (rows, *_, columns), (byte, place) = blocks.inner_loops(sch, partial, below)
    options = tuple(d for d in divisors(blocks.extent(sch, byte)) if d <= 4 * _STEPS)
    unroll = choose("unroll", options, default=max(d for d in options if d <= _STEPS))
    outer, inner = blocks.split(sch, byte, [None, unroll])
    vectors, lanes = blocks.split(sch, columns, [None, machine.lanes])
    sch.reorder(outer, inner, vectors, place, rows, lanes)
    sch.vectorize(lanes)
    for loop in (inner, vectors, place, rows):
        sch.unroll(loop)
    sch.decompose_reduction(partial, outer)
    sch.set_scope(partial, 0, "local")

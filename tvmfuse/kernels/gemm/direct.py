"""Products of a few rows by an operand that nobody packed: it is read once, as it lies.

Packing would write and read again what is needed just once, and memory is the limit.
Where the operand's rows run along the result's columns, a chunk of sums stays in L1 and
takes a few rows of the operand at a time; where they run along the sum (the weight of a
linear layer), a few sums stay in vector registers, one partial sum for each lane.
"""

from __future__ import annotations

import math
from typing import Any

from tvmfuse._tvm import te
from tvmfuse.kernels import approx, blocks, reading
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE, Block, Choose, Loop, Schedule
from tvmfuse.kernels.gemm.products import flattened, prepared, unflattened
from tvmfuse.kernels.steps import compute_first
from tvmfuse.kernels.tiling import Machine, divisors, task_counts

Tensor = Any  # te.Tensor

MAX_ROWS = 4
DIRECT = "direct"  # role of the product
TOTAL = "total"  # role of the sum of its lanes
_CHUNK = 1024  # sums in L1, all rows together
_STEPS = 8  # rows of the operand that a chunk takes at a time
_SUMS = 8  # in registers, where lanes are partial sums


def fits(rows: int, n: int, k: int, machine: Machine, *, transposed: bool) -> bool:
    """Whether :func:`emit` serves a product of ``rows`` x ``k`` by ``k`` x ``n``."""
    return rows <= MAX_ROWS and (k if transposed else n) % machine.lanes == 0


def emit(x: Tensor, weight: Tensor, machine: Machine, *, transposed: bool, dtype: str) -> Tensor:
    """Emit ``x @ weight``, or ``x @ weight.T``, summed in float32.

    Parameters
    ----------
    x : te.Tensor
        (..., M, K) of any float type, few rows in all.
    weight : te.Tensor
        (K, N), or (N, K) where transposed, of any float type.
    machine : Machine
        The device.
    transposed : bool
        Whether ``weight`` holds the columns as rows.
    dtype : str
        Type of the result.

    Returns
    -------
    te.Tensor
        (..., M, N).
    """
    lead = [int(d) for d in x.shape[:-1]]
    flat = flattened(x)
    rows = math.prod(lead)
    x = prepared(flat, lambda *i: approx.cast(flat[i], "float32"), rows)
    emit_sums = _lanes if transposed else _chunks
    result = emit_sums(x, weight, rows, machine)
    return unflattened(result, lead, int(result.shape[1]), dtype)


def _chunks(x: Tensor, weight: Tensor, rows: int, machine: Machine) -> Tensor:
    k, n = (int(d) for d in weight.shape)
    limit = _CHUNK // rows
    chunk = machine.lanes * max(
        d for d in divisors(n // machine.lanes) if d * machine.lanes <= limit
    )
    axis = te.reduce_axis((0, k), "k")
    return te.compute(
        (rows, n),
        lambda i, j: te.sum(x[i, axis] * approx.cast(weight[axis, j], "float32"), axis),
        name="matmul",
        attrs={FAMILY: "gemm", ROLE: DIRECT, TILE: [rows, chunk]},
    )


def _lanes(x: Tensor, weight: Tensor, rows: int, machine: Machine) -> Tensor:
    n, k = (int(d) for d in weight.shape)
    lanes = machine.lanes
    columns = max(d for d in divisors(n) if d * rows <= _SUMS)
    step, lane = te.reduce_axis((0, k // lanes), "step"), te.reduce_axis((0, lanes), "lane")

    def product(i: Any, j: Any, at: Any) -> Any:
        place = step * lanes + at
        return te.sum(x[i, place] * approx.cast(weight[j, place], "float32"), step)

    partial = te.compute(
        (rows, n, lanes),
        product,
        name="matmul",
        attrs={FAMILY: "gemm", ROLE: DIRECT, TILE: [rows, columns]},
    )
    return te.compute(
        (rows, n),
        lambda i, j: te.sum(partial[i, j, lane], lane),
        name="total",
        attrs={FAMILY: "gemm", ROLE: TOTAL},
    )


def schedule(sch: Schedule, anchor: Block, machine: Machine, choose: Choose) -> None:
    """Schedule a product of a few rows with its elementwise epilogue.

    Raises
    ------
    LoweringError
        The epilogue cannot be computed within a chunk.
    """
    out, total = blocks.sole_output(sch), blocks.find(sch, TOTAL)
    _, columns = blocks.tile(sch, anchor)
    i, j = reading.loops_as_read(sch, out, total or anchor)
    pieces = blocks.extent(sch, j) // columns
    options, best = task_counts(pieces, machine)
    tasks = choose("column_tasks", options, default=best)
    j_task, j_tile, j_in = blocks.split(sch, j, [tasks, None, columns])
    sch.reorder(j_task, j_tile, i, j_in)
    blocks.parallel(sch, [j_task], anchor, choose)
    steps = [anchor] if total is None else [total, anchor]
    for step in steps:
        sch.compute_at(step, j_tile, preserve_unit_loops=True)
    compute_first(sch, [*steps, out], j_task, machine.lanes)
    _register_tile(sch, anchor, j_tile, machine, choose)
    if total is None:
        blocks.vectorize_with_tail(sch, j_in, machine.lanes)
    else:
        _, (lane,) = blocks.inner_loops(sch, total, j_tile)
        sch.decompose_reduction(total, lane)
        sch.set_scope(total, 0, "local")


def _register_tile(
    sch: Schedule, anchor: Block, below: Loop, machine: Machine, choose: Choose
) -> None:
    (rows, columns, *lanes), (k,) = blocks.inner_loops(sch, anchor, below)
    options = tuple(d for d in divisors(blocks.extent(sch, k)) if d <= 2 * _STEPS)
    unroll = choose("unroll", options, default=max(d for d in options if d <= _STEPS))
    k_outer, k_inner = blocks.split(sch, k, [None, unroll])
    if lanes:
        sch.reorder(k_outer, k_inner, rows, columns, *lanes)
        unrolled = [k_inner, rows, columns]
    else:
        columns, vector = blocks.split(sch, columns, [None, machine.lanes])
        lanes = [vector]
        sch.reorder(k_outer, columns, rows, k_inner, vector)
        unrolled = [rows, k_inner]
    sch.vectorize(lanes[0])
    for loop in unrolled:
        sch.unroll(loop)
    sch.decompose_reduction(anchor, k_outer)
    sch.set_scope(anchor, 0, "local")

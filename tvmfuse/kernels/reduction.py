"""Reductions, softmax and norms: one row at a time, kept in cache.

Each task owns whole rows. A row is read once from memory; its statistics, and
what several steps share (the exponentials of a softmax), stay in scratch that is
as large as the row.

Statistics (:mod:`tvmfuse.kernels.rows`) are float32, and variances are sums of squared
distances from the mean: the difference of two large sums would lose all digits
of data far from zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import approx, blocks
from tvmfuse.kernels.blocks import Block, Choose, Schedule
from tvmfuse.kernels.rows import AXES, Rows, maximum, reduce
from tvmfuse.kernels.tiling import Machine, product

Tensor = Any  # te.Tensor
Expr = Any  # tirx.PrimExpr

_MIN_PARALLEL_ELEMENTS = 16384  # below this, starting threads costs more than it saves
_KEPT_AXIS = 0


def softmax(x: Tensor, axis: int, lanes: int, *, is_log: bool = False) -> Tensor:
    """Emit a softmax along ``axis``, or its logarithm.

    Parameters
    ----------
    x : te.Tensor
        Any shape, float32.
    axis : int
        Axis along which the results sum to one.
    lanes : int
        Elements of one vector.
    is_log : bool
        Whether to return logarithms.

    Returns
    -------
    te.Tensor
        Shape of ``x``.
    """
    rows = _rows(x, (axis,))
    at = _kept_index(rows)
    peak = reduce(lambda *i: x[i], rows, maximum(), lanes, name="peak")
    powers = te.compute(
        rows.shape,
        lambda *i: approx.exp(x[i] - peak[at(i)]),
        name="powers",
        attrs=rows.attrs("row"),
    )
    total = reduce(lambda *i: powers[i], rows, te.sum, lanes, name="total")
    if is_log:
        return te.compute(
            rows.shape,
            lambda *i: x[i] - peak[at(i)] - te.log(total[at(i)]),
            name="log_softmax",
        )
    inverse = te.compute(
        rows.kept, lambda *i: _one(x) / total[i], name="inverse", attrs=rows.attrs("row")
    )
    return te.compute(rows.shape, lambda *i: powers[i] * inverse[at(i)], name="softmax")


def normalize(
    x: Tensor,
    axes: Sequence[int],
    lanes: int,
    *,
    epsilon: float,
    centered: bool = True,
    affine: Callable[[Expr, Sequence[Any]], Expr] | None = None,
) -> Tensor:
    """Emit a normalisation to unit variance (layer, group, instance or RMS norm).

    Parameters
    ----------
    x : te.Tensor
        Any shape, float32.
    axes : Sequence[int]
        Axes over which the statistics run.
    lanes : int
        Elements of one vector.
    epsilon : float
        Added to the variance.
    centered : bool
        Whether the mean is taken off first; False gives the RMS norm.
    affine : callable, optional
        Scales and shifts a normalised element, given its indices.

    Returns
    -------
    te.Tensor
        Shape of ``x``.
    """
    rows = _rows(x, axes)
    at = _kept_index(rows)
    scale = tirx.const(1.0 / rows.length, "float32")
    if centered:
        # Summed as distances from the first element: far from zero, the sum of the
        # elements themselves would round away what sets them apart.
        first = te.compute(rows.kept, lambda *i: x[i], name="first", attrs=rows.attrs("row"))
        total = reduce(lambda *i: x[i] - first[at(i)], rows, te.sum, lanes, name="sum")
        mean = te.compute(
            rows.kept, lambda *i: first[i] + total[i] * scale, name="mean", attrs=rows.attrs("row")
        )

    def distance(*i: Any) -> Expr:
        return x[i] - mean[at(i)] if centered else x[i]

    def square(*i: Any) -> Expr:
        return approx.bind(distance(*i), lambda d: d * d)

    squares = reduce(square, rows, te.sum, lanes, name="squares")
    inverse = te.compute(
        rows.kept,
        lambda *i: _one(x) / te.sqrt(squares[i] * scale + tirx.const(epsilon, "float32")),
        name="inverse",
        attrs=rows.attrs("row"),
    )

    def result(*i: Any) -> Expr:
        normal = distance(*i) * inverse[at(i)]
        return affine(normal, i) if affine else normal

    return te.compute(rows.shape, result, name="normalize")


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule the steps of one or more reductions and what is computed from them.

    Raises
    ------
    LoweringError
        The steps do not share rows.
    """
    axes = {a for block in blocks.children(sch) for a in _axes(sch, block)}
    rank = _rank(sch)
    blocks.inline_cheap(sch)
    out, *more = blocks.outputs(sch)
    loops = sch.get_loops(out)
    if not loops:
        raise LoweringError("a reduction to one number has no rows")
    is_full = len(loops) == rank and not blocks.is_reduction(sch, out)
    within = [loops[a] for a in sorted(axes)] if is_full else []
    outside = [
        loop
        for i, loop in enumerate(loops)
        if not (is_full and i in axes) and i < _spatial(sch, out)
    ]
    elements = product(blocks.extents(sch, loops)) if is_full else _work(sch)
    is_large = elements >= _MIN_PARALLEL_ELEMENTS
    is_parallel = choose("is_parallel", (False, True), default=is_large)
    if more:
        _after_first(sch, out, outside, within, machine, is_parallel=is_parallel)
    else:
        _by_rows(sch, out, outside, within, machine, is_parallel=is_parallel)


def _by_rows(
    sch: Schedule,
    out: Block,
    outside: list[Any],
    within: list[Any],
    machine: Machine,
    *,
    is_parallel: bool,
) -> None:
    """Compute every other block within one row, or one vector of neighbouring rows."""
    last = sch.get_loops(out)[-1]
    last_is_row = bool(outside) and not (within and blocks.same_loop(sch, within[-1], last))
    lanes: list[Any] = []
    if last_is_row and _is_vectorizable(sch, out, outside[-1], machine):
        rest, vector = blocks.split(sch, outside[-1], [None, machine.lanes])
        outside, lanes = [*outside[:-1], rest], [vector]
    reduced = blocks.own_reduction_loops(sch, out)
    sch.reorder(*outside, *within, *reduced, *lanes)
    if not outside:
        raise LoweringError("a reduction to one row has no rows")
    row = sch.fuse(*outside) if len(outside) > 1 else outside[0]
    steps = [b for b in reversed(blocks.children(sch)) if not blocks.same(sch, b, out)]
    for block in steps:
        sch.compute_at(block, row, preserve_unit_loops=True)
    if is_parallel:
        sch.parallel(row)
    if lanes:
        sch.vectorize(lanes[0])
    elif within:
        blocks.vectorize_with_tail(sch, within[-1], machine.lanes)
    for block in steps:
        _vectorize_row(sch, block, row, machine)
    if reduced:
        sch.decompose_reduction(out, reduced[0])


def _after_first(
    sch: Schedule,
    first: Block,
    outside: list[Any],
    within: list[Any],
    machine: Machine,
    *,
    is_parallel: bool,
) -> None:
    """Compute each row of the first of several results, and all that follows from it."""
    if not outside or not within:
        raise LoweringError("the first of several results must hold whole rows")
    sch.reorder(*outside, *within)
    row = sch.fuse(*outside) if len(outside) > 1 else outside[0]
    steps = [b for b in blocks.children(sch) if not blocks.same(sch, b, first)]
    for block in steps:
        sch.reverse_compute_at(block, row, preserve_unit_loops=True)
    if is_parallel:
        sch.parallel(row)
    for block in (first, *steps):
        _vectorize_row(sch, block, row, machine)


def _vectorize_row(sch: Schedule, block: Block, row: Any, machine: Machine) -> None:
    spatial, reduced = blocks.inner_loops(sch, block, row)
    vector = [loop for loop in spatial if blocks.extent(sch, loop) > 1]
    if reduced:
        sch.reorder(*reduced, *spatial)
    if vector and blocks.extent(sch, vector[-1]) == machine.lanes:
        sch.vectorize(vector[-1])
    elif vector and not reduced:
        blocks.vectorize_with_tail(sch, vector[-1], machine.lanes)
    if reduced:
        sch.decompose_reduction(block, reduced[0])


def _is_vectorizable(sch: Schedule, out: Block, loop: Any, machine: Machine) -> bool:
    return blocks.extent(sch, loop) % machine.lanes == 0 and blocks.is_last_axis(sch, out, loop)


def _axes(sch: Schedule, block: Block) -> tuple[int, ...]:
    return tuple(int(a) for a in sch.get(block).annotations.get(AXES, ()))


def _rank(sch: Schedule) -> int:
    ranks = {
        len(region.region)
        for block in blocks.children(sch)
        if _axes(sch, block)
        for region in sch.get(block).writes
    }
    if len(ranks) != 1:
        raise LoweringError("reductions over tensors of different rank share no rows")
    return ranks.pop()


def _spatial(sch: Schedule, block: Block) -> int:
    return sum(int(axis.iter_type) == _KEPT_AXIS for axis in blocks.iter_vars(sch, block))


def _work(sch: Schedule) -> int:
    return max(
        product(int(axis.dom.extent) for axis in blocks.iter_vars(sch, block))
        for block in blocks.children(sch)
    )


def _rows(x: Tensor, axes: Sequence[int]) -> Rows:
    shape = tuple(int(d) for d in x.shape)
    return Rows(shape, tuple(sorted(axis % len(shape) for axis in axes)))


def _kept_index(rows: Rows) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    return lambda index: tuple(0 if i in rows.axes else v for i, v in enumerate(index))


def _one(x: Tensor) -> Expr:
    return tirx.const(1.0, x.dtype)

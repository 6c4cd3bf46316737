"""Reductions, softmax and norms: one row at a time, kept in cache.

:mod:`tvmfuse.kernels.row_tasks` schedules them.

Statistics (:mod:`tvmfuse.kernels.rows`) are float32, and variances are sums of squared
distances from the mean: the difference of two large sums would lose all digits
of data far from zero.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx
from tvmfuse.kernels.rows import Rows, peak, reduce, sums

Tensor = Any  # te.Tensor
Expr = Any  # tirx.PrimExpr


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
    top = reduce(lambda *i: x[i], rows, peak(), lanes, name="peak")
    powers = te.compute(
        rows.shape,
        lambda *i: approx.exp_below(x[i] - top[at(i)]),
        name="powers",
        attrs=rows.attrs("row"),
    )
    total = reduce(lambda *i: powers[i], rows, sums(), lanes, name="total")
    if is_log:
        return te.compute(
            rows.shape,
            lambda *i: x[i] - top[at(i)] - te.log(total[at(i)]),
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
        total = reduce(lambda *i: x[i] - first[at(i)], rows, sums(), lanes, name="sum")
        mean = te.compute(
            rows.kept, lambda *i: first[i] + total[i] * scale, name="mean", attrs=rows.attrs("row")
        )

    def distance(*i: Any) -> Expr:
        return x[i] - mean[at(i)] if centered else x[i]

    def square(*i: Any) -> Expr:
        return approx.bind(distance(*i), lambda d: d * d)

    squares = reduce(square, rows, sums(), lanes, name="squares")
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


def normalize_groups(
    x: Tensor,
    groups: int,
    lanes: int,
    *,
    epsilon: float,
    affine: Callable[[Expr, Expr], Expr],
) -> Tensor:
    """Emit a normalisation over groups of channels and all that follows them.

    Parameters
    ----------
    x : te.Tensor
        (batch, channels, ...), float32.
    groups : int
        Divides the channels.
    lanes : int
        Elements of one vector.
    epsilon : float
        Added to the variance.
    affine : callable
        Scales and shifts a normalised element, given its channel.

    Returns
    -------
    te.Tensor
        Shape of ``x``.
    """
    batch, channels, *space = (int(d) for d in x.shape)
    size = channels // groups
    parted = te.compute(
        (batch, groups, size, *space),
        lambda n, g, c, *at: x[(n, g * size + c, *at)],
        name="parted",
    )
    normal = normalize(
        parted,
        range(2, len(parted.shape)),
        lanes,
        epsilon=epsilon,
        affine=lambda y, i: affine(y, i[1] * size + i[2]),
    )
    return te.compute(
        x.shape, lambda n, c, *at: normal[(n, c // size, c % size, *at)], name="joined"
    )


def _rows(x: Tensor, axes: Sequence[int]) -> Rows:
    shape = tuple(int(d) for d in x.shape)
    return Rows(shape, tuple(sorted(axis % len(shape) for axis in axes)))


def _kept_index(rows: Rows) -> Callable[[Sequence[Any]], tuple[Any, ...]]:
    return lambda index: tuple(0 if i in rows.axes else v for i, v in enumerate(index))


def _one(x: Tensor) -> Expr:
    return tirx.const(1.0, x.dtype)

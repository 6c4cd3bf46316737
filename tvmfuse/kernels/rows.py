"""Statistics of rows: sums and extremes over some axes of a tensor.

LLVM may not reorder a float sum, so a sum over neighbouring elements is emitted
as one partial sum per vector lane, a tail for what fills no vector, and a last
step that adds them up.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx, blocks
from tvmfuse.kernels.blocks import FAMILY, ROLE
from tvmfuse.kernels.tiling import product

Tensor = Any  # te.Tensor
Expr = Any  # tirx.PrimExpr

AXES = "tvmfuse.axes"
INNER = blocks.KEPT  # sums of rows that are added up in turn


@dataclass(frozen=True)
class Rows:
    """Which axes of a shape a reduction runs over."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def is_inner(self) -> bool:
        """Whether it runs over the last axes, whose elements are neighbours."""
        return self.axes == tuple(range(self.lead, self.lead + len(self.axes)))

    @property
    def lead(self) -> int:
        """How many axes stand before those that it runs over, if these are the last ones.

        An axis of one element behind them is none.
        """
        rank = len(self.shape)
        while rank - 1 not in self.axes and self.shape[rank - 1] == 1:
            rank -= 1
        return rank - len(self.axes)

    @property
    def length(self) -> int:
        """Elements of one row."""
        return product(self.shape[axis] for axis in self.axes)

    @property
    def kept(self) -> tuple[int, ...]:
        """Shape of the statistics, with ones for the reduced axes."""
        return tuple(1 if i in self.axes else d for i, d in enumerate(self.shape))

    def attrs(self, role: str) -> dict[str, Any]:
        """Return the annotations that :func:`schedule` reads."""
        return {FAMILY: "reduction", ROLE: role, AXES: list(self.axes)}


Value = Callable[..., Expr]  # the element at given indices

_MAX_PARTS = 4  # vectors that are summed beside each other: an addition waits four cycles
_MIN_STEPS = 2


@dataclass(frozen=True)
class Combine:
    """How a reduction combines two elements.

    Parameters
    ----------
    name : str
        Its name.
    pair : callable
        Combines two elements; associative and commutative.
    identity : float
        What changes no element.
    """

    name: str
    pair: Callable[[Expr, Expr], Expr]
    identity: float

    def __call__(self, value: Expr, axis: Any) -> Expr:
        """Return the reduction of ``value`` over one or more reduction axes."""
        start = self.identity
        pair = self.pair
        reducer = te.comm_reducer(
            lambda a, b: pair(a, b), lambda dtype: tirx.const(start, dtype), self.name
        )
        return reducer(value, axis=axis)

    def tree(self, values: Sequence[Expr]) -> Expr:
        """Combine few elements pair by pair, so that none waits for all others."""
        if len(values) == 1:
            return values[0]
        half = len(values) // 2
        return self.pair(self.tree(values[:half]), self.tree(values[half:]))


def sums() -> Combine:
    """Return the sum."""
    return Combine("sum", lambda a, b: a + b, 0.0)


def maximum() -> Combine:
    """Return a maximum that keeps NaN and starts from minus infinity (NumPy's rule)."""
    return Combine("max", approx.maximum, -math.inf)


def minimum() -> Combine:
    """Return a minimum that keeps NaN and starts from infinity (NumPy's rule)."""
    return Combine("min", approx.minimum, math.inf)


def peak() -> Combine:
    """Return a maximum that may pass over NaN: one instruction instead of seven.

    It serves where a NaN comes to light later on, as in the exponentials of a softmax.
    """
    return Combine("peak", lambda a, b: tirx.Max(a, b), -math.inf)


def reduce(value: Value, rows: Rows, combine: Combine, lanes: int, *, name: str) -> Tensor:
    """Emit a reduction that keeps the reduced axes as ones.

    Parameters
    ----------
    value : callable
        Returns the element at the indices of ``rows.shape``.
    rows : Rows
        What to reduce over.
    combine : Combine
        How.
    lanes : int
        Elements of one vector.
    name : str
        Name of the last block.

    Returns
    -------
    te.Tensor
        Shape ``rows.kept``.
    """
    *lead, last = rows.shape
    is_long = rows.axes[-1] == len(lead) and last >= 2 * lanes
    if is_long and len(rows.axes) > 1 and (not rows.is_inner or len(rows.axes) > len(lead)):
        inner = Rows(rows.shape, (len(lead),))
        parts = _reduce_lanes(value, inner, combine, lanes, name=f"{name}_inner", role=INNER)
        outer = Rows(inner.kept, rows.axes[:-1])
        return reduce(lambda *i: parts[i], outer, combine, lanes, name=name)
    if rows.is_inner and rows.length >= 2 * lanes:
        return _reduce_lanes(value, rows, combine, lanes, name=name)
    axes = {axis: te.reduce_axis((0, rows.shape[axis]), f"k{axis}") for axis in rows.axes}

    def at(*index: Any) -> Expr:
        return value(*(axes.get(i, index[i]) for i in range(len(rows.shape))))

    return te.compute(
        rows.kept,
        lambda *i: combine(at(*i), axis=list(axes.values())),
        name=name,
        attrs=rows.attrs("statistic"),
    )


def _reduce_lanes(
    value: Value,
    rows: Rows,
    combine: Combine,
    lanes: int,
    *,
    name: str,
    role: str = "statistic",
) -> Tensor:
    """Reduce the last axes, read as one."""
    lead, end = rows.lead, rows.lead + len(rows.axes)
    ones = (1,) * (len(rows.shape) - lead - 1)  # of the other axes
    behind = (0,) * (len(rows.shape) - end)
    attrs = {role: rows.attrs(role) for role in ("lanes", "statistic")}

    def element(i: Sequence[Any], k: Any) -> Expr:
        return value(*i[:lead], *_unraveled(k, rows.shape[lead:end]), *behind)

    vectors, rest = divmod(rows.length, lanes)
    parts = next(p for p in range(_MAX_PARTS, 0, -1) if vectors % p == 0 and _fits(vectors, p))
    width = parts * lanes
    step = te.reduce_axis((0, vectors // parts), "step")
    partial = te.compute(
        (*rows.shape[:lead], *ones, width),
        lambda *i: combine(element(i, step * width + i[-1]), axis=step),
        name=f"{name}_lanes",
        attrs=attrs["lanes"],
    )
    if parts > 1:
        wide = partial
        partial = te.compute(
            (*rows.shape[:lead], *ones, lanes),
            lambda *i: combine.tree([wide[(*i[:-1], i[-1] + p * lanes)] for p in range(parts)]),
            name=f"{name}_vector",
            attrs=attrs["lanes"],
        )
    if rest:
        left = te.reduce_axis((0, rest), "left")
        tail = te.compute(
            rows.kept,
            lambda *i: combine(element(i, vectors * lanes + left), axis=left),
            name=f"{name}_tail",
            attrs=attrs["statistic"],
        )

    def total(*i: Any) -> Expr:
        values = [partial[(*i[:lead], *i[lead + 1 :], lane)] for lane in range(lanes)]
        return combine.tree([*values, tail[i]] if rest else values)

    return te.compute(rows.kept, total, name=name, attrs=rows.attrs(role))


def _unraveled(k: Any, shape: Sequence[int]) -> list[Any]:
    """Return the indices of the ``k``-th element of ``shape``."""
    index: list[Any] = []
    for extent in reversed(shape[1:]):
        index.append(k % extent)
        k = k // extent
    return [k, *reversed(index)]


def _fits(vectors: int, parts: int) -> bool:
    return parts == 1 or vectors // parts >= _MIN_STEPS

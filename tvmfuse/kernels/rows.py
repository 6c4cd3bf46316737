"""Statistics of rows: sums and extremes over some axes of a tensor.

LLVM may not reorder a float sum, so a sum over neighbouring elements is emitted
as one partial sum per vector lane, a tail for what fills no vector, and a last
step that adds them up.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx
from tvmfuse.kernels.blocks import FAMILY, ROLE
from tvmfuse.kernels.tiling import product

Tensor = Any  # te.Tensor
Expr = Any  # tirx.PrimExpr

AXES = "tvmfuse.axes"


@dataclass(frozen=True)
class Rows:
    """Which axes of a shape a reduction runs over."""

    shape: tuple[int, ...]
    axes: tuple[int, ...]

    @property
    def is_inner(self) -> bool:
        """Whether it runs over the last axes, whose elements are neighbours."""
        rank = len(self.shape)
        return self.axes == tuple(range(rank - len(self.axes), rank))

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


Combine = Callable[..., Expr]  # te.sum, maximum() or minimum()
Value = Callable[..., Expr]  # the element at given indices


def maximum() -> Combine:
    """Return a maximum that keeps NaN and starts from minus infinity (NumPy's rule)."""
    return te.comm_reducer(approx.maximum, lambda dtype: tirx.const(-math.inf, dtype), name="max")


def minimum() -> Combine:
    """Return a minimum that keeps NaN and starts from infinity (NumPy's rule)."""
    return te.comm_reducer(approx.minimum, lambda dtype: tirx.const(math.inf, dtype), name="min")


def reduce(value: Value, rows: Rows, combine: Combine, lanes: int, *, name: str) -> Tensor:
    """Emit a reduction that keeps the reduced axes as ones.

    Parameters
    ----------
    value : callable
        Returns the element at the indices of ``rows.shape``.
    rows : Rows
        What to reduce over.
    combine : callable
        ``te.sum``, :func:`maximum` or :func:`minimum`.
    lanes : int
        Elements of one vector.
    name : str
        Name of the last block.

    Returns
    -------
    te.Tensor
        Shape ``rows.kept``.
    """
    if not rows.is_inner or len(rows.axes) != 1 or rows.length < 2 * lanes:
        axes = {axis: te.reduce_axis((0, rows.shape[axis]), f"k{axis}") for axis in rows.axes}

        def at(*index: Any) -> Expr:
            return value(*(axes.get(i, index[i]) for i in range(len(rows.shape))))

        return te.compute(
            rows.kept,
            lambda *i: combine(at(*i), axis=list(axes.values())),
            name=name,
            attrs=rows.attrs("statistic"),
        )
    return _reduce_lanes(value, rows, combine, lanes, name=name)


def _reduce_lanes(value: Value, rows: Rows, combine: Combine, lanes: int, *, name: str) -> Tensor:
    vectors, rest = divmod(rows.length, lanes)
    step = te.reduce_axis((0, vectors), "step")
    partial = te.compute(
        (*rows.shape[:-1], lanes),
        lambda *i: combine(value(*i[:-1], step * lanes + i[-1]), axis=step),
        name=f"{name}_lanes",
        attrs=rows.attrs("lanes"),
    )
    if rest:
        left = te.reduce_axis((0, rest), "left")
        tail = te.compute(
            rows.kept,
            lambda *i: combine(value(*i[:-1], vectors * lanes + left), axis=left),
            name=f"{name}_tail",
            attrs=rows.attrs("statistic"),
        )
    lane = te.reduce_axis((0, lanes), "lane")
    total = te.compute(
        rows.kept,
        lambda *i: combine(partial[(*i[:-1], lane)], axis=lane),
        name=name,
        attrs=rows.attrs("statistic"),
    )
    if not rest:
        return total
    both = te.reduce_axis((0, 2), "both")
    return te.compute(
        rows.kept,
        lambda *i: combine(tirx.Select(both == 0, total[i], tail[i]), axis=both),
        name=f"{name}_total",
        attrs=rows.attrs("statistic"),
    )

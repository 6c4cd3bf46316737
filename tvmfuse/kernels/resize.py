"""Resize: one axis after the other, each by a table of places and weights.

Where an element comes from depends on its index along each axis alone. So the places
and weights are computed once for each axis, not for each element; and a row of the
result blends the rows above and below first, in whole vectors, which leaves the last
axis, whose elements LLVM gathers, one row in the first-level cache.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import te, tirx, topi
from tvmfuse.kernels import blocks, half
from tvmfuse.kernels.blocks import FAMILY, ROLE, Choose, Schedule
from tvmfuse.kernels.tiling import Machine, product

Builder = Any  # relax.BlockBuilder
Call = Any  # relax.Call
Expr = Any  # tirx.PrimExpr
Tensor = Any  # te.Tensor

TAPS = {"nearest_neighbor": 1, "linear": 2, "cubic": 4}
"""Elements along an axis that make one of the result, by method."""

_FAMILY = "resize"
_TABLE, _ROWS = "table", "rows"
_MIN_PARALLEL_ELEMENTS = 16384  # below this, starting threads costs more than it saves


@dataclass(frozen=True)
class Sampling:
    """How elements are sampled, in the words of TVM's ``relax.image.resize2d``.

    Parameters
    ----------
    method : str
        A key of :data:`TAPS`.
    coordinates : str
        How a place in the result becomes one in the operand.
    rounding : str
        How the nearest element is found.
    alpha : float
        The parameter of the cubic spline.
    is_inside_only : bool
        Whether cubic weights outside of the operand are left out.
    """

    method: str
    coordinates: str
    rounding: str = ""
    alpha: float = -0.75
    is_inside_only: bool = False


def legalize(builder: Builder, call: Call) -> Any:
    """Lower ``relax.image.resize2d`` and ``resize3d``, or let TVM where it is not covered."""
    attrs, shape = call.attrs, call.ty.shape
    rank = int(call.ty.ndim)
    sampling = Sampling(
        str(attrs.method),
        str(attrs.coordinate_transformation_mode),
        str(attrs.rounding_method),
        float(attrs.cubic_alpha),
        bool(int(attrs.cubic_exclude)),
    )
    dtypes = {str(call.ty.dtype), str(call.args[0].ty.dtype)}
    is_covered = (
        str(attrs.layout) in ("NCHW", "NCDHW")
        and sampling.coordinates != "tf_crop_and_resize"
        and len(dtypes) == 1
        and (sampling.method == "nearest_neighbor" or dtypes <= set(half.FLOATS))
        and shape is not None
        and all(isinstance(d, int | tirx.IntImm) for d in (*shape, *call.args[0].ty.shape))
        and 0 not in [int(d) for d in shape]
    )
    if not is_covered:
        return call.op.get_attr("FLegalize")(builder, call)

    def emitted(x: Tensor) -> Tensor:
        sizes = {axis: int(shape[axis]) for axis in range(2, rank)}
        if sampling.method == "nearest_neighbor":
            return emit(x, sizes, sampling)
        return half.cast(emit(half.cast(x, "float32"), sizes, sampling), str(call.ty.dtype))

    return builder.call_te(emitted, call.args[0], primfunc_name_hint="resize")


def emit(x: Tensor, sizes: dict[int, int], sampling: Sampling) -> Tensor:
    """Emit a resize.

    Parameters
    ----------
    x : te.Tensor
        float32; of any type for the nearest element.
    sizes : dict of int to int
        The new extent of each axis that changes.
    sampling : Sampling
        How.

    Returns
    -------
    te.Tensor
        ``x`` with the new extents.
    """
    shape = [sizes.get(a, int(d)) for a, d in enumerate(x.shape)]
    tables = {
        a: _Table(int(d), size, sampling, a)
        for a, (d, size) in enumerate(zip(x.shape, shape, strict=True))
        if int(d) not in (1, size)  # of one element all results are copies
    }
    last = len(shape) - 1
    across = {a: table for a, table in tables.items() if a != last}
    if sampling.method != "nearest_neighbor" and across:
        x = _blended(x, [*shape[:-1], int(x.shape[-1])], across, name="rows", role=_ROWS)
        tables = {a: table for a, table in tables.items() if a == last}
    return _blended(x, shape, tables, name="resize")


class _Table:
    """The places and weights of one axis."""

    def __init__(self, extent: int, size: int, sampling: Sampling, axis: int) -> None:
        self.size, self.taps = size, TAPS[sampling.method]
        attrs = {FAMILY: _FAMILY, ROLE: _TABLE}
        place, weight = _axis(extent, size, sampling)
        shape = (self.taps, size)
        self._top = tirx.const(extent - 1, "int32")
        self._places = te.compute(
            shape, lambda t, i: self._within(place(i) + t), name=f"places{axis}", attrs=attrs
        )
        if weight is not None:
            self.weights = te.compute(shape, weight, name=f"weights{axis}", attrs=attrs)

    def place(self, tap: int, i: Any) -> Expr:
        """Return where the element of a tap lies; TVM has to see that it is within bounds."""
        return self._within(self._places[tap, i])

    def _within(self, index: Expr) -> Expr:
        return te.max(te.min(index, self._top), tirx.const(0, "int32"))


def _axis(
    extent: int, size: int, sampling: Sampling
) -> tuple[Callable[[Any], Expr], Callable[[Any, Any], Expr] | None]:
    """Return the first place of an element, and the weight of each tap."""
    image = topi.image.resize

    def at(i: Any) -> Expr:
        whole = (tirx.const(n, "int32") for n in (extent, size))
        return image.get_inx(i, *whole, sampling.coordinates, 0.0, 0.0)

    def whole(i: Any) -> Expr:
        return te.floor(at(i)).astype("int32")

    if sampling.method == "nearest_neighbor":
        default = "round" if sampling.coordinates == "align_corners" else "floor"
        return lambda i: image.get_closest_index(at(i), sampling.rounding or default, None), None
    if sampling.method == "linear":

        def linear(t: Any, i: Any) -> Expr:
            part = at(i) - te.floor(at(i))
            return tirx.Select(t == 0, tirx.const(1.0, "float32") - part, part)

        return whole, linear

    def cubic(t: Any, i: Any) -> Expr:
        part = at(i) - te.floor(at(i))
        weights = image._cubic_spline_weights(part, sampling.alpha)
        if sampling.is_inside_only:
            place = whole(i) - 1
            zero = tirx.const(0.0, "float32")
            weights = [
                tirx.Select(te.all(place + n >= 0, place + n < extent), w, zero)
                for n, w in enumerate(weights)
            ]
            total = sum(weights[1:], weights[0])
            weights = [w / total for w in weights]
        chosen = weights[3]
        for n in (2, 1, 0):
            chosen = tirx.Select(t == n, weights[n], chosen)
        return chosen

    return lambda i: whole(i) - 1, cubic


def _blended(
    x: Tensor, shape: Sequence[int], tables: dict[int, _Table], *, name: str, role: str = ""
) -> Tensor:
    """Return ``x`` sampled along the axes of ``tables``, the first of them outermost."""

    def value(*index: Any) -> Expr:
        def sampled(at: tuple[Any, ...], axes: Sequence[int]) -> Expr:
            if not axes:
                return x[tuple(0 if int(d) == 1 else i for d, i in zip(x.shape, at, strict=True))]
            axis, *rest = axes
            table, i = tables[axis], at[axis]

            def tap(t: int) -> Expr:
                found = sampled((*at[:axis], table.place(t, i), *at[axis + 1 :]), rest)
                return found if table.taps == 1 else found * table.weights[t, i]

            total = tap(0)
            for t in range(1, table.taps):
                total = total + tap(t)
            return total

        return sampled(index, sorted(tables))

    return te.compute(shape, value, name=name, attrs={FAMILY: _FAMILY, ROLE: role} if role else {})


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule a resize and what follows it element by element.

    Raises
    ------
    LoweringError
        There are several results, or what follows has to keep it in memory.
    """
    blocks.inline_all(sch)
    out = blocks.sole_output(sch)
    *outer, last = sch.get_loops(out)
    elements = product(blocks.extents(sch, [*outer, last]))
    row = sch.fuse(*outer) if len(outer) > 1 else [*outer, last][0]
    for block in blocks.find_all(sch, _ROWS):
        sch.compute_at(block, row, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")  # on the stack, see _tvm/registers.py
        vectors = choose("vectors", (1, 2, 4), default=1)
        blocks.vectorize_with_tail(sch, sch.get_loops(block)[-1], vectors * machine.lanes)
    unrolls = tuple(n for n in (1, 2, 4, 8) if blocks.extent(sch, last) % n == 0) if outer else (1,)
    unroll = choose("unroll", unrolls, default=1)
    if unroll > 1:
        sch.unroll(blocks.split(sch, last, [None, unroll])[1])
    if choose("is_parallel", (False, True), default=elements >= _MIN_PARALLEL_ELEMENTS):
        sch.parallel(row)

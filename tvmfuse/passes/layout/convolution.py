"""How convolutions work on channel-blocked tensors and packed weights."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from tvmfuse.kernels import conv as conv_kernel
from tvmfuse.kernels import grouped, half, transposed, window, winograd
from tvmfuse.kernels.grouped import Groups
from tvmfuse.kernels.image import Window, without_unused
from tvmfuse.kernels.tiling import Machine
from tvmfuse.kernels.transposed import Geometry
from tvmfuse.passes.layout.convert import can_arrange
from tvmfuse.passes.layout.forms import (
    Blocked,
    ConvWeight,
    DepthwiseWeight,
    Form,
    GroupedWeight,
    Trailing,
    TransposedWeight,
    WinogradWeight,
)
from tvmfuse.passes.layout.geometry import blocked_form, kernel, require_channels_first, window_of
from tvmfuse.passes.layout.integer import integer_conv, is_integer
from tvmfuse.passes.layout.rewrite import Expr, NotRewritable, Rewriter, Var, dtypes, shape_of
from tvmfuse.passes.layout.shapes import Shape, as_image

_SMALL_INPUT = 2  # an image of fewer than block / 2 channels stays as it is


@dataclass(frozen=True)
class Way:
    """A kernel for one convolution, and the forms that it takes."""

    name: str
    emit: Callable[..., Any]
    source: Form
    weight: Form
    more: dict[str, Any] = field(default_factory=dict)


def conv(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Convolve blocked channels, or a few plain ones, with packed weights."""
    x, weight = call.args
    attrs, blocked = call.attrs, blocked_form(rewriter, var)
    require_channels_first(attrs)
    geometry = window_of(attrs, shape_of(weight)[2:])
    if is_integer(x, weight, var):
        return integer_conv(rewriter, call, geometry, blocked), blocked
    for way in float_ways(rewriter, call, var):
        if rewriter.is_constant(weight) or can_arrange(way.weight):
            return call_of(rewriter, call, way), blocked
    raise NotRewritable("weights of such groups are packed only when they are constant")


def float_ways(rewriter: Rewriter, call: Any, var: Var) -> list[Way]:
    """Return the kernels that compute a convolution of floats, the best one first.

    Raises
    ------
    NotRewritable
        There are none.
    """
    x, weight = call.args
    attrs, blocked = call.attrs, blocked_form(rewriter, var)
    require_channels_first(attrs)
    types = dtypes([x, weight, var])
    if len(types) > 1 or not types <= set(half.FLOATS):
        raise NotRewritable("blocked convolution needs operands and result of one float type")
    if str(attrs.kernel_layout) not in ("OIHW", "OIW"):
        raise NotRewritable(f"kernel layout {attrs.kernel_layout} is not packed")
    image, filters = as_image(shape_of(x), blocked.rank), shape_of(weight)[0]
    if 0 in (*image, *shape_of(var)):
        raise NotRewritable("empty images stay plain")
    geometry = window_of(attrs, shape_of(weight)[2:])
    ways = _ways(image, filters, int(attrs.groups), geometry, blocked, rewriter.machine)
    (dtype,) = types
    if dtype != "float32":
        ways = [_of_halves(way, dtype) for way in ways if way.emit is not winograd.emit]
    if not rewriter.is_in_blocks(x) and geometry.kernel != (1, 1):
        ways = [_of_planes(way) for way in ways]
    return ways


def call_of(rewriter: Rewriter, call: Any, way: Way) -> Expr:
    """Return a convolution as the call of one of its kernels."""
    x, weight = call.args
    geometry = window_of(call.attrs, shape_of(weight)[2:])
    args = [rewriter.take(x, way.source), rewriter.take(weight, way.weight)]
    emit = _clean(way.emit, shape_of(weight)[0], str(x.ty.dtype))
    return kernel(rewriter, args, emit, geometry, name=way.name, **way.more)


def _ways(
    image: Shape, filters: int, groups: int, geometry: Window, blocked: Blocked, machine: Machine
) -> list[Way]:
    """Return the kernels that compute a convolution, the best one first."""
    channels, block = image[1], blocked.block
    packed = ConvWeight(block, block)
    if groups > 1 and groups == channels == filters:
        return [Way("depthwise_conv", window.emit_depthwise, blocked, DepthwiseWeight(block))]
    if groups > 1 and (channels // groups % block or filters // groups % block):
        parts = Groups(groups, channels, filters, block)
        return [Way("grouped_conv", grouped.emit, blocked, GroupedWeight(parts), {"groups": parts})]
    if groups > 1:
        return [Way("conv", conv_kernel.emit, blocked, packed, {"groups": groups})]
    if channels * _SMALL_INPUT < block:
        return [Way("conv", conv_kernel.emit, Trailing(blocked.rank), ConvWeight(1, block))]
    direct = Way("conv", conv_kernel.emit, blocked, packed)
    if not winograd.is_faster(image, filters, geometry, machine):
        return [direct]
    return [Way("conv_winograd", winograd.emit, blocked, WinogradWeight(block)), direct]


def _of_halves(way: Way, dtype: str) -> Way:
    """Return the same convolution of half precision, which is stored and not computed with."""
    if not isinstance(way.weight, DepthwiseWeight):
        return way
    return replace(way, weight=replace(way.weight, dtype=dtype))


def _of_planes(way: Way) -> Way:
    """Return the same convolution of what does not lie in blocks yet.

    A direct convolution reads its pixels one by one, each for all taps of its window: the
    copy into blocks costs it more than pixels that lie apart.
    """
    source = way.source
    if way.emit is not conv_kernel.emit or way.more or not isinstance(source, Blocked):
        return way
    return replace(way, source=Trailing(source.rank), weight=ConvWeight(1, source.block))


def conv_transpose(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Convolve blocked channels transposed, phase by phase."""
    x, weight = call.args
    attrs, blocked = call.attrs, blocked_form(rewriter, var)
    require_channels_first(attrs)
    _require_float32(x, weight, var)
    if not rewriter.is_constant(weight):
        raise NotRewritable("weights of a transposed convolution are packed only when constant")
    if str(attrs.kernel_layout) not in ("IOHW", "IOW") or int(attrs.groups) != 1:
        raise NotRewritable("only transposed convolutions of one group work on blocks")
    geometry = window_of(attrs, shape_of(weight)[2:])
    if geometry.dilation != (1, 1) or 0 in (*shape_of(x), *shape_of(var)):
        raise NotRewritable("dilated or empty transposed convolutions stay plain")
    _, filters, *out = as_image(shape_of(var), blocked.rank)
    turned = Geometry(geometry.kernel, geometry.strides, geometry.padding[:2], (out[0], out[1]))
    packed = TransposedWeight(blocked.block, geometry.strides)
    args = [rewriter.take(x, blocked), rewriter.take(weight, packed)]
    emit = _clean(transposed.emit, filters)
    return kernel(rewriter, args, emit, turned, name="conv_transpose"), blocked


def _clean(emit: Callable[..., Any], channels: int, dtype: str = "float32") -> Callable[..., Any]:
    """Let ``emit`` leave zeros where the last block has no channel, and numbers of ``dtype``.

    An infinity times the zero weights of such a lane is NaN, which would survive the
    zero weights of the next convolution.
    """

    def clean(*args: Any, **more: Any) -> Any:
        sums = without_unused(emit(*args, **more), channels)
        return half.narrowed(sums, dtype)

    return clean


def _require_float32(*tensors: Expr) -> None:
    if dtypes(tensors) != {"float32"}:
        raise NotRewritable("blocked convolution needs float32")

"""How operators that only move elements work on channel-blocked tensors."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse._tvm import relax, te, tirx
from tvmfuse.passes.layout.forms import Form
from tvmfuse.passes.layout.geometry import blocked_form
from tvmfuse.passes.layout.rewrite import Expr, NotRewritable, Rewriter, Var, shape_of
from tvmfuse.passes.layout.shapes import as_image

_IMAGE_RANK = 4


def concat(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Join blocked tensors along any axis; channels also where a part ends within a block."""
    parts, blocked = call.args[0], blocked_form(rewriter, var)
    if not isinstance(parts, relax.Tuple):
        raise NotRewritable("the parts are not known one by one")
    axis = int(call.attrs.axis) % blocked.rank
    args = [rewriter.take(part, blocked) for part in parts.fields]
    if axis != 1:
        return relax.op.concat(args, axis=axis + _IMAGE_RANK - blocked.rank if axis else 0), blocked
    channels = [shape_of(part)[1] for part in parts.fields]
    if not any(count % blocked.block for count in channels[:-1]):
        return relax.op.concat(args, axis=1), blocked
    emit = _joining(channels, blocked.block)
    return rewriter.kernel(emit, *args, name="concat"), blocked


def _joining(channels: Sequence[int], block: int) -> Callable[..., Any]:
    """Return an emitter that joins parts of so many channels, wherever blocks begin."""
    starts = [sum(channels[:i]) for i in range(len(channels))]
    total = sum(channels)

    def emit(*parts: Any) -> Any:
        n, _, h, w, _ = parts[0].shape

        def value(n: Any, c: Any, h: Any, w: Any, lane: Any) -> Any:
            channel = c * block + lane
            found = tirx.const(0, parts[0].dtype)
            for part, start, end in zip(
                reversed(parts), reversed(starts), reversed([*starts[1:], total]), strict=True
            ):
                at = channel - start
                found = te.if_then_else(
                    channel < end, part[n, at // block, h, w, at % block], found
                )
            return found

        return te.compute((n, -(-total // block), h, w, block), value, name="concat")

    return emit


def strided_slice(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Take some rows, columns or channels of blocked tensors."""
    x, blocked = call.args[0], blocked_form(rewriter, var)
    image = as_image(shape_of(x), blocked.rank)
    axes, begin, end, strides = _bounds(call, image, blocked.rank)
    source = rewriter.take(x, blocked)
    if 1 not in axes:
        return relax.op.strided_slice(source, axes, begin, end, strides), blocked
    at = axes.index(1)
    if len(axes) > 1 or strides[at] != 1:
        raise NotRewritable("of channels, only neighbouring ones are taken from blocks")
    emit = _taking(begin[at], shape_of(var)[1], blocked.block)
    return rewriter.kernel(emit, source, name="strided_slice"), blocked


def _bounds(call: Any, image: Sequence[int], rank: int) -> tuple[list[int], ...]:
    """Return axes of the image, and for each the first element, the end and the stride.

    Raises
    ------
    NotRewritable
        They are not known, or run backwards.
    """
    axes, begin, end, *rest = ([_number(field) for field in arg.fields] for arg in call.args[1:])
    strides = rest[0] if rest else [1] * len(axes)
    if min(strides) < 1:
        raise NotRewritable("slices that run backwards stay plain")
    places = [axis % rank for axis in axes]
    places = [axis if axis < 2 else axis + _IMAGE_RANK - rank for axis in places]
    sizes = [image[place] for place in places]
    first, last = (
        [max(0, min(size, v + size if v < 0 else v)) for v, size in zip(values, sizes, strict=True)]
        for values in (begin, end)
    )
    return places, first, last, strides


def _number(field: Any) -> int:
    value = getattr(field, "value", field)
    if not isinstance(value, int | tirx.IntImm):
        raise NotRewritable("the bounds of the slice are not known")
    return int(value)


def _taking(first: int, count: int, block: int) -> Callable[[Any], Any]:
    """Return an emitter that takes ``count`` channels from ``first`` on."""

    def emit(x: Any) -> Any:
        n, _, h, w, _ = x.shape

        def value(n: Any, c: Any, h: Any, w: Any, lane: Any) -> Any:
            at = c * block + lane + first
            read = x[n, at // block, h, w, at % block]
            if count % block == 0:
                return read
            return te.if_then_else(at < first + count, read, tirx.const(0, x.dtype))

        return te.compute((n, -(-count // block), h, w, block), value, name="strided_slice")

    return emit


def pad(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Pad the rows and columns of blocked images with a constant."""
    attrs, rank = call.attrs, len(shape_of(var))
    widths = [int(width) for width in attrs.pad_width]
    if str(attrs.pad_mode) != "constant" or any(widths[:4]):
        raise NotRewritable("only constant padding of rows and columns works on blocks")
    blocked = blocked_form(rewriter, var)
    widths[4:4] = [0, 0] * (_IMAGE_RANK - rank)  # a row is an image of height one
    x = rewriter.take(call.args[0], blocked)
    return relax.op.nn.pad(x, [*widths, 0, 0], "constant", float(attrs.pad_value)), blocked


def resize(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Resize blocked images, each block as an image of so many channels, those last."""
    x, attrs, blocked = call.args[0], call.attrs, blocked_form(rewriter, var)
    if str(attrs.layout) != "NCHW" or blocked.rank != _IMAGE_RANK:
        raise NotRewritable(f"resizing in layout {attrs.layout} stays plain")
    source = rewriter.take(x, blocked)
    n, c, *size, block = blocked.shape(shape_of(x))
    *_, height, width, _ = blocked.shape(shape_of(var))
    images = rewriter.emit(relax.op.reshape(source, (n * c, *size, block)), "images")
    resized = relax.op.image.resize2d(
        images,
        relax.ShapeExpr([height, width]),
        roi=tuple(float(bound) for bound in attrs.roi),
        layout="NHWC",
        method=str(attrs.method),
        coordinate_transformation_mode=str(attrs.coordinate_transformation_mode),
        rounding_method=str(attrs.rounding_method),
        cubic_alpha=float(attrs.cubic_alpha),
        cubic_exclude=int(attrs.cubic_exclude),
        extrapolation_value=float(attrs.extrapolation_value),
        out_dtype=str(var.ty.dtype),
    )
    blocks = rewriter.emit(resized, "resized")
    return relax.op.reshape(blocks, (n, c, height, width, block)), blocked

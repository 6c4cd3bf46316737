"""How each operator works on channel-blocked tensors and packed weights.

A rule is given the call in plain form and returns the call in its new form, or
refuses. Layout is a matter of speed: what no rule covers stays plain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from tvmfuse._tvm import relax
from tvmfuse.kernels import conv, gemm, window
from tvmfuse.kernels.conv import Window
from tvmfuse.kernels.tiling import gemm_tile
from tvmfuse.passes.layout.forms import (
    PLAIN,
    Blocked,
    ConvWeight,
    DepthwiseWeight,
    Form,
    Panels,
    Trailing,
    rank4,
)
from tvmfuse.passes.layout.rewrite import (
    Expr,
    NotRewritable,
    Rewriter,
    Rule,
    Var,
    dtypes,
    operator,
    shape_of,
)

# Elementwise operators that are finite at 0, and so keep unused lanes of a last
# block finite: a NaN there would survive multiplication by a zero weight.
_FINITE = (
    "abs add clip erf exp maximum minimum multiply negative nn.gelu nn.gelu_tanh nn.leakyrelu "
    "nn.relu nn.silu nn.softplus sigmoid square subtract tanh"
)
# These are not, or not always: full blocks only.
_OTHER = "divide sqrt rsqrt log power ceil floor round"

_SMALL_INPUT = 2  # an image of fewer than block / 2 channels stays as it is


def conv2d(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Convolve blocked channels, or a few plain ones, with packed weights."""
    x, weight = call.args
    attrs, block = call.attrs, rewriter.machine.block
    _require_nchw(attrs)
    if dtypes([x, weight, var]) != {"float32"} or not rewriter.is_constant(weight):
        raise NotRewritable("blocked convolution needs float32 and a constant weight")
    if str(attrs.kernel_layout) != "OIHW":
        raise NotRewritable(f"kernel layout {attrs.kernel_layout} is not packed")
    geometry, groups = _window(attrs, shape_of(weight)[2:]), int(attrs.groups)
    channels_in, channels_out = shape_of(x)[1], shape_of(weight)[0]
    if groups > 1 and groups == channels_in == channels_out:
        args = [rewriter.take(x, Blocked(block)), rewriter.take(weight, DepthwiseWeight(block))]
        return _kernel(rewriter, args, window.emit_depthwise, geometry, name="depthwise_conv2d")
    if groups > 1 and any(c // groups % block for c in (channels_in, channels_out)):
        raise NotRewritable("channel groups that are not whole blocks stay plain")
    is_image = groups == 1 and channels_in * _SMALL_INPUT < block
    source: Form = Trailing() if is_image else Blocked(block)
    packed = ConvWeight(1 if is_image else block, block)
    args = [rewriter.take(x, source), rewriter.take(weight, packed)]
    call = rewriter.kernel(
        lambda a, b: conv.emit(a, b, geometry, rewriter.machine, groups=groups),
        *args,
        name="conv2d",
    )
    return call, Blocked(block)


def matmul(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Multiply by a packed constant weight."""
    x, weight = call.args
    if dtypes([x, weight, var]) != {"float32"} or not rewriter.is_constant(weight):
        raise NotRewritable("packing needs float32 and a constant weight")
    rows, shape = shape_of(x), shape_of(weight)
    if len(rows) < 2 or len(shape) < 2 or math.prod(shape[:-2]) != 1 or 0 in (*rows, *shape):
        raise NotRewritable("packing needs one weight matrix and rows to multiply by it")
    if len(shape_of(var)) != len(rows):
        raise NotRewritable("the weight's leading ones widen the result")
    tile = gemm_tile(rows[-2], shape[-1], rewriter.machine)
    args = [rewriter.take(x, PLAIN), rewriter.take(weight, Panels(tile.columns))]
    call = rewriter.kernel(
        lambda a, b: gemm.emit_packed(a, b, shape[-1], rewriter.machine), *args, name="matmul"
    )
    return call, PLAIN


def elementwise(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Apply an elementwise operator to operands in one form."""
    if _is_plain(rewriter, call):
        return _same_call(call, [_take(rewriter, arg, PLAIN) for arg in call.args]), PLAIN
    block = rewriter.machine.block
    out = rank4(_rank_at_most_4(shape_of(var)))
    name = operator(call).removeprefix("relax.")
    if out[1] % block and name in _OTHER.split():
        raise NotRewritable(f"{name} may not be finite in an unused lane")
    args = [_take(rewriter, arg, _operand_form(arg, out, block)) for arg in call.args]
    return _same_call(call, args), Blocked(block)


def pool(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Pool blocked channels."""
    (x,) = call.args
    _require_nchw(call.attrs)
    if dtypes([x]) != {"float32"}:
        raise NotRewritable("blocked pooling needs float32")
    geometry = _window(call.attrs, call.attrs.pool_size)
    geometry = _as_large_as(geometry, shape_of(x)[2:], shape_of(var)[2:])
    is_max = operator(call).endswith("max_pool2d")
    count = bool(call.attrs.count_include_pad)
    if not is_max and bool(call.attrs.ceil_mode) and count:
        raise NotRewritable("the divisor of rounded-up average pooling stays plain")
    source = rewriter.take(x, Blocked(rewriter.machine.block))
    if is_max:
        return _kernel(rewriter, [source], window.emit_max, geometry, name="max_pool2d")
    return _kernel(
        rewriter, [source], window.emit_mean, geometry, name="avg_pool2d", count_padding=count
    )


def global_pool(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Average over the whole image."""
    (x,) = call.args
    _require_nchw(call.attrs)
    if shape_of(var)[2:] != (1, 1):
        raise NotRewritable("adaptive pooling to more than one pixel stays plain")
    block = Blocked(rewriter.machine.block)
    return relax.op.mean(rewriter.take(x, block), axis=[2, 3], keepdims=True), block


def reduce_image(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Reduce over height and width."""
    (x,) = call.args
    axes = call.attrs.axis
    rank = len(shape_of(x))
    if rank != 4 or axes is None or {int(a) % rank for a in axes} != {2, 3}:
        raise NotRewritable("only reductions over height and width work on blocks")
    block = rewriter.machine.block
    keep = bool(call.attrs.keepdims)
    if not keep and shape_of(x)[1] % block:
        raise NotRewritable("a last block that is not full cannot become a plain axis")
    reduce = getattr(relax.op, operator(call).removeprefix("relax."))
    result = reduce(rewriter.take(x, Blocked(block)), axis=[2, 3], keepdims=keep)
    if keep:
        return result, Blocked(block)
    return relax.op.reshape(rewriter.emit(result, "blocks"), shape_of(var)), PLAIN


def concat(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Join along the channels where every part but the last is whole blocks."""
    block = rewriter.machine.block
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple) or len(shape_of(var)) != 4:
        raise NotRewritable("only concatenation of images works on blocks")
    if int(call.attrs.axis) % 4 != 1:
        raise NotRewritable("only concatenation of channels works on blocks")
    if any(shape_of(part)[1] % block for part in list(parts.fields)[:-1]):
        raise NotRewritable("parts that are not whole blocks cannot be joined")
    fields = [rewriter.take(part, Blocked(block)) for part in parts.fields]
    return relax.op.concat(fields, axis=1), Blocked(block)


RULES: Mapping[str, Rule] = {
    "relax.nn.conv2d": conv2d,
    "relax.matmul": matmul,
    "relax.nn.max_pool2d": pool,
    "relax.nn.avg_pool2d": pool,
    "relax.nn.adaptive_avg_pool2d": global_pool,
    "relax.mean": reduce_image,
    "relax.sum": reduce_image,
    "relax.max": reduce_image,
    "relax.min": reduce_image,
    "relax.concat": concat,
    **{f"relax.{name}": elementwise for name in (_FINITE + " " + _OTHER).split()},
}

ANCHORS = frozenset({"relax.nn.conv2d", "relax.matmul"})


def _kernel(
    rewriter: Rewriter,
    args: Sequence[Expr],
    emit: Any,
    geometry: Window,
    *,
    name: str,
    **options: Any,
) -> tuple[Expr, Form]:
    machine = rewriter.machine
    call = rewriter.kernel(lambda *t: emit(*t, geometry, machine, **options), *args, name=name)
    return call, Blocked(machine.block)


def _same_call(call: Any, args: Sequence[Expr]) -> Expr:
    return relax.Call(call.op, list(args), call.attrs, call.ty_args)


def _take(rewriter: Rewriter, arg: Expr, form: Form) -> Expr:
    """Return a tensor in ``form``; anything else (the limits of clip) as it is."""
    return rewriter.take(arg, form) if isinstance(arg, relax.Var) else arg


def _is_plain(rewriter: Rewriter, call: Any) -> bool:
    """Whether an operand is a plain result of this group, so that all operands must be."""
    return any(rewriter.form_of(arg) == PLAIN for arg in call.args)


def _operand_form(arg: Expr, out: tuple[int, ...], block: int) -> Form:
    if not isinstance(arg, relax.Var):
        return PLAIN
    shape = shape_of(arg)
    if math.prod(shape) == 1 and len(shape) <= 1:
        return PLAIN
    has_channels = rank4(_rank_at_most_4(shape))[1] == out[1]
    return Blocked(block) if has_channels else Trailing()


def _rank_at_most_4(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) > 4:
        raise NotRewritable("a rank above 4 stays plain")
    return shape


def _require_nchw(attrs: Any) -> None:
    layouts = {str(attrs.layout)} if hasattr(attrs, "layout") else {str(attrs.data_layout)}
    layouts.add(str(attrs.out_layout) or "NCHW")
    if layouts != {"NCHW"}:
        raise NotRewritable(f"layout {', '.join(sorted(layouts))} is not blocked")


def _window(attrs: Any, kernel: Sequence[Any]) -> Window:
    kh, kw = (int(k) for k in kernel)
    strides = tuple(int(s) for s in attrs.strides)
    dilation = tuple(int(d) for d in attrs.dilation)
    padding = tuple(int(p) for p in attrs.padding)
    if min(*strides, *dilation, *padding, 1) < 0:
        raise NotRewritable("negative padding stays plain")
    return Window((kh, kw), strides, padding, dilation)  # type: ignore[arg-type]


def _as_large_as(geometry: Window, size: tuple[int, ...], out: tuple[int, ...]) -> Window:
    """Grow the padding at the end until the window gives ``out`` results (rounding up)."""
    top, left, bottom, right = geometry.padding
    span = geometry.span(*out)
    bottom = max(bottom, span[0] - size[0] - top)
    right = max(right, span[1] - size[1] - left)
    grown = Window(geometry.kernel, geometry.strides, (top, left, bottom, right), geometry.dilation)
    if grown.out(*size) != tuple(out):
        raise NotRewritable("the window does not give the declared shape")
    return grown

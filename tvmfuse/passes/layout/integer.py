"""How convolutions of 8-bit integers work on channel-blocked tensors."""

from __future__ import annotations

from typing import Any

from tvmfuse.kernels import integer_conv as kernel
from tvmfuse.kernels.gemm import integer
from tvmfuse.kernels.grouped import Groups
from tvmfuse.kernels.image import Window
from tvmfuse.passes.layout.forms import Blocked, DepthwiseWeight, Form, Trailing
from tvmfuse.passes.layout.geometry import kernel as kernel_call
from tvmfuse.passes.layout.integer_forms import ChannelSums, IntegerConvWeight
from tvmfuse.passes.layout.rewrite import Expr, NotRewritable, Rewriter, Var, dtypes, shape_of

_SMALL_INPUT = 2  # an image of fewer than block / 2 channels stays as it is


def is_integer(x: Expr, weight: Expr, result: Var) -> bool:
    """Whether a convolution sums 8-bit pixels times a narrow weight in int32."""
    return (
        dtypes([x]) <= {"int8", "uint8"}
        and dtypes([weight]) <= {"int8", "int16"}
        and dtypes([result]) == {"int32"}
    )


def integer_conv(rewriter: Rewriter, call: Any, window: Window, blocked: Blocked) -> Expr:
    """Convolve 8-bit channel blocks, or a few plain channels."""
    x, weight = call.args
    layout, dtype = str(call.attrs.kernel_layout), str(weight.ty.dtype)
    if not rewriter.is_constant(weight):
        raise NotRewritable("an integer convolution needs a constant weight")
    if layout not in ("OIHW", "OIW"):
        raise NotRewritable(f"kernel layout {layout} is not packed")
    if 0 in (*shape_of(x), *shape_of(weight)):
        raise NotRewritable("empty images stay plain")
    machine, block, channels = rewriter.machine, blocked.block, shape_of(x)[1]
    count, filters = int(call.attrs.groups), shape_of(weight)[0]
    if count > 1 and count == channels == filters:
        packed = DepthwiseWeight(block, kernel.depthwise_dtype(dtype, window))
        args = [rewriter.take(x, blocked), rewriter.take(weight, packed)]
        return kernel_call(rewriter, args, kernel.emit_depthwise, window, name="depthwise_conv")
    chosen = integer.plan(str(x.ty.dtype), dtype, machine)
    groups = Groups(count, channels, filters, block) if count > 1 else None
    is_image = groups is None and channels * _SMALL_INPUT < block
    source: Form = Trailing(blocked.rank) if is_image else blocked
    form = IntegerConvWeight(1 if is_image else block, block, chosen, groups)
    args = [rewriter.take(x, source), rewriter.take(weight, form)]
    if chosen.shift:
        args.append(rewriter.take(weight, ChannelSums(block)))

    def emit(a: Any, b: Any, sums: Any = None) -> Any:
        return kernel.emit(a, b, sums, window, chosen, machine, groups=groups)

    return rewriter.kernel(emit, *args, name="grouped_conv" if groups else "conv")

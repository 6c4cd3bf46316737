"""How convolutions of 8-bit integers work on channel-blocked tensors."""

from __future__ import annotations

from typing import Any

from tvmfuse.kernels import integer_conv as kernel
from tvmfuse.kernels.conv import Window
from tvmfuse.kernels.gemm import integer
from tvmfuse.passes.layout.forms import Blocked, Form, Trailing
from tvmfuse.passes.layout.integer_forms import ChannelSums, IntegerConvWeight
from tvmfuse.passes.layout.rewrite import Expr, NotRewritable, Rewriter, Var, dtypes, shape_of

_IMAGE_RANK = 4
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
    if not rewriter.is_constant(weight) or int(call.attrs.groups) != 1:
        raise NotRewritable("an integer convolution needs one group and a constant weight")
    if blocked.rank != _IMAGE_RANK or str(call.attrs.kernel_layout) != "OIHW":
        raise NotRewritable("only images are convolved as integers")
    machine, block, channels = rewriter.machine, blocked.block, shape_of(x)[1]
    chosen = integer.plan(str(x.ty.dtype), str(weight.ty.dtype), machine)
    is_image = channels * _SMALL_INPUT < block
    source: Form = Trailing(blocked.rank) if is_image else blocked
    form = IntegerConvWeight(1 if is_image else block, block, chosen)
    args = [rewriter.take(x, source), rewriter.take(weight, form)]
    if chosen.shift:
        args.append(rewriter.take(weight, ChannelSums(block)))

    def emit(a: Any, b: Any, sums: Any = None) -> Any:
        return kernel.emit(a, b, sums, window, chosen, machine)

    return rewriter.kernel(emit, *args, name="conv")

"""How each operator works on channel-blocked tensors and packed weights.

A rule is given the call in plain form and returns the call in its new form, or
refuses. Layout is a matter of speed: what no rule covers stays plain.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvmfuse._tvm import relax
from tvmfuse._tvm.recurrence import OPERATORS
from tvmfuse.kernels import elementwise as elementwise_kernel
from tvmfuse.passes.layout.attention import attention
from tvmfuse.passes.layout.chained import CHAINED_RULES
from tvmfuse.passes.layout.convolution import conv, conv_transpose
from tvmfuse.passes.layout.forms import (
    PLAIN,
    Blocked,
    Channels,
    Form,
    Trailing,
)
from tvmfuse.passes.layout.geometry import blocked_form, require_channels_first
from tvmfuse.passes.layout.matmul import matmul
from tvmfuse.passes.layout.moves import concat, pad, resize, strided_slice
from tvmfuse.passes.layout.pooling import pooling_kernel, pooling_window
from tvmfuse.passes.layout.recurrent import recurrent
from tvmfuse.passes.layout.rewrite import (
    Expr,
    GroupRule,
    NotRewritable,
    Rewriter,
    Rule,
    Var,
    dtypes,
    operator,
    plainly,
    same_call,
    shape_of,
    take_tensor,
)
from tvmfuse.passes.layout.shapes import as_image

# Elementwise operators that are finite at 0 and do not run away from it, and so keep
# unused lanes of a last block finite: an infinity or NaN there would survive the zero
# weights of the next convolution, as NaN in all its results.
_FINITE = (
    "abs add astype clip dequantize erf maximum minimum multiply negative nn.gelu nn.gelu_tanh "
    "nn.leakyrelu nn.relu nn.silu nn.softplus quantize sigmoid square subtract tanh"
)
# These are not, or not always: full blocks only.
_OTHER = "divide exp sqrt rsqrt log power ceil floor round"


def elementwise(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Apply an elementwise operator to operands in one form."""
    if _is_plain(rewriter, call):
        return same_call(call, [take_tensor(rewriter, arg, PLAIN) for arg in call.args]), PLAIN
    blocked = blocked_form(rewriter, var)
    name = operator(call).removeprefix("relax.")
    channels = shape_of(var)[1]
    if channels % blocked.block and name in _OTHER.split():
        raise NotRewritable(f"{name} may not be finite in an unused lane")
    args = [take_tensor(rewriter, arg, _operand_form(arg, channels, blocked)) for arg in call.args]
    return same_call(call, args), blocked


def prelu(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Scale what is below zero, by a constant for each channel."""
    x, slope = call.args
    if _is_plain(rewriter, call):
        return plainly(rewriter, call, var)
    blocked = blocked_form(rewriter, var)
    if int(call.attrs.axis) % blocked.rank != 1 or not rewriter.is_constant(slope):
        raise NotRewritable("a prelu on blocks needs a constant slope for each channel")
    if dtypes([x, slope]) != {"float32"}:
        raise NotRewritable("a prelu on blocks needs float32")
    args = [rewriter.take(x, blocked), rewriter.take(slope, Channels(blocked.block))]
    return rewriter.kernel(elementwise_kernel.emit_prelu, *args, name="prelu"), blocked


def pool(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Pool blocked channels."""
    blocked = blocked_form(rewriter, var)
    return pooling_kernel(rewriter, call, pooling_window(call, var)), blocked


def global_pool(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Average over the whole image."""
    (x,) = call.args
    require_channels_first(call.attrs)
    if any(size != 1 for size in shape_of(var)[2:]):
        raise NotRewritable("adaptive pooling to more than one pixel stays plain")
    blocked = blocked_form(rewriter, var)
    return relax.op.mean(rewriter.take(x, blocked), axis=[2, 3], keepdims=True), blocked


def reduce_image(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Reduce over all but batch and channels."""
    (x,) = call.args
    axes, blocked = call.attrs.axis, blocked_form(rewriter, x)
    if axes is None or {int(a) % blocked.rank for a in axes} != set(range(2, blocked.rank)):
        raise NotRewritable("only reductions over the whole image work on blocks")
    keep = bool(call.attrs.keepdims)
    if not keep and shape_of(x)[1] % blocked.block:
        raise NotRewritable("a last block that is not full cannot become a plain axis")
    reduce = getattr(relax.op, operator(call).removeprefix("relax."))
    result = reduce(rewriter.take(x, blocked), axis=[2, 3], keepdims=keep)
    if keep:
        return result, blocked
    return relax.op.reshape(rewriter.emit(result, "blocks"), shape_of(var)), PLAIN


RULES: Mapping[str, Rule] = {
    "relax.matmul": matmul,
    "relax.nn.prelu": prelu,
    "relax.nn.pad": pad,
    **{f"relax.nn.conv{n}d": conv for n in (1, 2)},
    **{f"relax.nn.conv{n}d_transpose": conv_transpose for n in (1, 2)},
    **{f"relax.nn.{kind}_pool{n}d": pool for kind in ("max", "avg") for n in (1, 2)},
    **{f"relax.nn.adaptive_avg_pool{n}d": global_pool for n in (1, 2)},
    "relax.mean": reduce_image,
    "relax.sum": reduce_image,
    "relax.max": reduce_image,
    "relax.min": reduce_image,
    "relax.concat": concat,
    "relax.strided_slice": strided_slice,
    "relax.image.resize2d": resize,
    **{f"relax.{name}": elementwise for name in (_FINITE + " " + _OTHER).split()},
}

FAMILY_RULES: Mapping[str, Mapping[str, Rule]] = {"chained": {**RULES, **CHAINED_RULES}}
"""Rules for the operators of groups of some families, instead of :data:`RULES`."""

GROUP_RULES: Mapping[str, GroupRule] = {"attention": attention, "recurrent": recurrent}
"""Rules for whole groups, by family."""

ANCHORS = frozenset(
    {f"relax.nn.conv{n}d{kind}" for n in (1, 2) for kind in ("", "_transpose")}
    | {"relax.matmul", *OPERATORS}
)


def _is_plain(rewriter: Rewriter, call: Any) -> bool:
    """Whether an operand is a plain result of this group, so that all operands must be."""
    return any(rewriter.form_of(arg) == PLAIN for arg in call.args)


def _operand_form(arg: Expr, channels: int, blocked: Blocked) -> Form:
    if not isinstance(arg, relax.Var):
        return PLAIN
    shape = shape_of(arg)
    if math.prod(shape) == 1 and len(shape) <= 1:
        return PLAIN
    if len(shape) > blocked.rank:
        raise NotRewritable("an operand of higher rank stays plain")
    has_channels = as_image(shape, blocked.rank)[1] == channels
    return blocked if has_channels else Trailing(blocked.rank)

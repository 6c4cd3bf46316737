"""Views around products and norms: out of the way of what could be one kernel."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import relax
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow

_RESHAPE, _PRODUCT = "relax.reshape", "relax.matmul"
_LAST = -1


def view_before_norm(flow: Dataflow, position: int) -> Any:
    """Rewrite ``reshape(norm(x))`` as ``norm(reshape(x))`` where the rows stay rows.

    Only where nobody else reads the norm and products read the view, so that the norm
    can be computed by the products.
    """
    if flow.operators[position] != _RESHAPE or not flow.users[position]:
        return None
    call = flow.value(position)
    norm = flow.private_source(position, call.args[0])
    if norm is None or flow.operators[norm] not in operators.NORMS:
        return None
    inner = flow.value(norm)
    before, after = operators.shape(inner), operators.shape(call)
    if not before or not after or before[-1] != after[-1]:
        return None
    if [int(axis) % len(before) for axis in inner.attrs.axes] != [len(before) - 1]:
        return None
    if any(flow.operators[user] != _PRODUCT for user in flow.users[position]):
        return None
    x, *parameters = inner.args
    rows = relax.op.reshape(x, call.args[1])
    epsilon = float(inner.attrs.epsilon)
    if flow.operators[norm] == "relax.nn.rms_norm":
        return relax.op.nn.rms_norm(rows, *parameters, axes=[-1], epsilon=epsilon)
    center, scale = bool(inner.attrs.center), bool(inner.attrs.scale)
    return relax.op.nn.layer_norm(
        rows, *parameters, axes=[-1], epsilon=epsilon, center=center, scale=scale
    )


def elementwise_before_view(flow: Dataflow, position: int) -> Any:
    """Rewrite ``f(reshape(y), z)`` as ``reshape(f(y, reshape(z)))`` behind a product.

    Exporters flatten the rows of a linear layer and unfold its result; with the reshape
    behind what follows, activation and residual belong to the epilogue.
    """
    if not operators.is_elementwise(flow.operators[position]):
        return None
    call = flow.value(position)
    if int(getattr(call.attrs, "axis", _LAST)) != _LAST:
        return None  # the slopes of a prelu: the axis they belong to may not outlive the view
    moved = next((arg for arg in call.args if _is_view_of_product(flow, position, arg)), None)
    whole = operators.shape(call) if moved is not None else None
    if whole is None or operators.shape(moved) != whole or _is_symbolic(whole):
        return None
    inner = flow.value(flow.position[moved]).args[0]
    shape = operators.shape(inner)
    # One way only, towards fewer axes: a second product may be seen the other way round.
    if shape is None or _is_symbolic(shape) or len(shape) >= len(whole):
        return None
    args = [
        inner
        if arg.same_as(moved)
        else _seen_as(arg, whole, shape, keeps_last=shape[-1:] == whole[-1:])
        for arg in call.args
    ]
    if any(arg is None for arg in args):
        return None
    return relax.op.reshape(relax.Call(call.op, args, call.attrs, call.ty_args), whole)


def _seen_as(arg: Any, whole: Any, shape: Any, *, keeps_last: bool) -> Any:
    """Return an operand of a tensor of shape ``whole`` for one that is seen as ``shape``."""
    if not isinstance(arg.ty, relax.TensorType):
        return arg  # the bounds of a clip
    own = operators.shape(arg)
    if own == whole:
        return relax.op.reshape(arg, shape)
    is_row = own is not None and len(own) == 1 and keeps_last and own[0] in (1, whole[-1])
    return arg if own == () or is_row else None


def _is_view_of_product(flow: Dataflow, position: int, arg: Any) -> bool:
    """Whether an operand is a reshape, read by nobody else, of what follows a product."""
    source = flow.private_source(position, arg)
    if source is None or flow.operators[source] != _RESHAPE:
        return False
    inner = flow.position.get(flow.value(source).args[0])
    while inner is not None and operators.is_elementwise(flow.operators[inner]):
        inner = flow.position.get(flow.value(inner).args[0])
    return inner is not None and flow.operators[inner] == _PRODUCT


def _is_symbolic(shape: Any) -> bool:
    return not all(isinstance(extent, int) for extent in shape)

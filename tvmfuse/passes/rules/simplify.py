"""Small rewrites that give equal graphs one form, so that patterns stay few.

Constants become right-hand operands, operators that do nothing vanish, and
expensive arithmetic by a constant becomes cheap arithmetic.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import constant, narrowed, to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow

_BINARY = (
    "relax.add",
    "relax.divide",
    "relax.maximum",
    "relax.minimum",
    "relax.multiply",
    "relax.power",
    "relax.subtract",
)
_COMMUTATIVE = ("relax.add", "relax.multiply", "relax.maximum", "relax.minimum")


def constant_last(flow: Dataflow, position: int) -> Any:
    """Rewrite ``add(c, x)`` as ``add(x, c)``."""
    if flow.operators[position] not in _COMMUTATIVE:
        return None
    call = flow.value(position)
    left, right = call.args
    if constant(left) is None or constant(right) is not None:
        return None
    return relax.Call(call.op, [right, left])


def scalar_for_uniform(flow: Dataflow, position: int) -> Any:
    """Rewrite a constant operand whose elements are all equal as one number."""
    if flow.operators[position] not in _BINARY:
        return None
    call = flow.value(position)
    tensor, operand = call.args
    value = constant(operand)
    if value is None or value.ndim == 0 or operators.shape(tensor) != operators.shape(call):
        return None
    if value.size == 0 or not (value == value.reshape(-1)[0]).all():
        return None
    scalar = to_constant(value.reshape(-1)[0], operators.dtype(operand))
    return relax.Call(call.op, [tensor, scalar])


def scalar_for_uniform_choice(flow: Dataflow, position: int) -> Any:
    """Rewrite a choice of ``where`` whose elements are all equal as one number."""
    if flow.operators[position] != "relax.where":
        return None
    call = flow.value(position)
    args = list(call.args)
    for i in (1, 2):
        value = constant(args[i])
        if value is None or value.ndim == 0 or value.size == 0:
            continue
        others = [operators.shape(arg) for j, arg in enumerate(args) if j != i]
        is_needed = not _stretch_to(others, operators.shape(call))
        if not is_needed and (value == value.reshape(-1)[0]).all():
            args[i] = to_constant(value.reshape(-1)[0], operators.dtype(args[i]))
            return relax.Call(call.op, args)
    return None


def drop_settled_choice(flow: Dataflow, position: int) -> Any:
    """Rewrite ``where(c, x, y)`` with a condition that is everywhere the same as its choice."""
    if flow.operators[position] != "relax.where":
        return None
    call = flow.value(position)
    condition = constant(call.args[0])
    if condition is None or condition.size == 0 or condition.all() != condition.any():
        return None
    chosen = call.args[1 if condition.all() else 2]
    return chosen if _same_type(chosen, call) else None


def _stretch_to(shapes: list[Any], whole: Any) -> bool:
    """Tell whether tensors of some static shapes together stretch to a whole one."""
    if whole is None or any(shape is None for shape in shapes):
        return False
    if not all(isinstance(extent, int) for shape in (*shapes, whole) for extent in shape):
        return False
    return bool(np.broadcast_shapes(*shapes) == tuple(whole))


def multiply_by_reciprocal(flow: Dataflow, position: int) -> Any:
    """Rewrite ``divide(x, c)`` as ``multiply(x, 1 / c)``; one rounding differs."""
    divisor = _float_constant_operand(flow, position, "relax.divide")
    if divisor is None or not divisor.all():
        return None
    numerator = flow.value(position).args[0]
    reciprocal = narrowed(1.0 / divisor, operators.dtype(numerator))
    return None if reciprocal is None else relax.op.multiply(numerator, reciprocal)


def rsqrt_for_reciprocal(flow: Dataflow, position: int) -> Any:
    """Rewrite ``divide(1, sqrt(x))`` as ``rsqrt(x)``; one rounding differs."""
    if flow.operators[position] != "relax.divide":
        return None
    numerator, divisor = flow.value(position).args
    one, source = constant(numerator), flow.position.get(divisor)
    if one is None or one.size != 1 or not (one == 1).all() or source is None:
        return None
    if flow.operators[source] != "relax.sqrt" or not _same_type(divisor, flow.value(position)):
        return None
    return relax.op.rsqrt(flow.value(source).args[0])


def add_negative(flow: Dataflow, position: int) -> Any:
    """Rewrite ``subtract(x, c)`` as ``add(x, -c)``."""
    subtrahend = _float_constant_operand(flow, position, "relax.subtract")
    if subtrahend is None:
        return None
    minuend = flow.value(position).args[0]
    return relax.op.add(minuend, to_constant(-subtrahend, operators.dtype(minuend)))


def expand_power(flow: Dataflow, position: int) -> Any:
    """Rewrite a power with a small constant exponent as products or a square root."""
    exponent = _float_constant_operand(flow, position, "relax.power")
    if exponent is None or exponent.size != 1:
        return None
    base = flow.value(position).args[0]
    if operators.shape(base) != operators.shape(flow.value(position)):
        return None
    square = relax.op.multiply(base, base)
    expanded = {
        -0.5: relax.op.rsqrt(base),
        0.5: relax.op.sqrt(base),
        1.0: base,
        2.0: square,
        3.0: relax.op.multiply(square, base),
    }
    return expanded.get(float(exponent.reshape(())))


def multiply_for_square(flow: Dataflow, position: int) -> Any:
    """Rewrite ``square(x)`` as ``multiply(x, x)``."""
    if flow.operators[position] != "relax.square":
        return None
    base = flow.value(position).args[0]
    return relax.op.multiply(base, base)


def inline_shape(flow: Dataflow, position: int) -> Any:
    """Rewrite a shape operand whose type says its value as that value."""
    call = flow.value(position)
    if not flow.operators[position] or not any(_has_known_shape(arg) for arg in call.args):
        return None
    args = [relax.ShapeExpr(a.ty.values) if _has_known_shape(a) else a for a in call.args]
    return relax.Call(call.op, args, call.attrs, call.ty_args, call.span)


def _has_known_shape(arg: Any) -> bool:
    is_shape = isinstance(arg, relax.Var) and isinstance(arg.ty, relax.ShapeType)
    return is_shape and arg.ty.values is not None


def drop_identity(flow: Dataflow, position: int) -> Any:
    """Rewrite an operator that hands its operand on as that operand."""
    operator, call = flow.operators[position], flow.value(position)
    if not operator:
        return _dropout_input(flow, call)
    if operator not in _CAN_BE_IDENTITY:
        return None
    operand = call.args[0]
    if operator == "relax.concat" and isinstance(operand, relax.Tuple):
        operand = operand.fields[0]
    if not _same_type(operand, call):
        return None
    return operand if _hands_on(operator, call) else None


_CAN_BE_IDENTITY = (
    "relax.astype",
    "relax.broadcast_to",
    "relax.concat",
    "relax.expand_dims",
    "relax.flatten",
    "relax.multiply",
    "relax.permute_dims",
    "relax.reshape",
    "relax.squeeze",
    "relax.strided_slice",
)


def _hands_on(operator: str, call: Any) -> bool:
    """Tell whether an operator whose result has its operand's type changes no element."""
    if operator == "relax.multiply":
        factor = constant(call.args[1])
        return factor is not None and factor.size == 1 and bool((factor == 1).all())
    if operator == "relax.permute_dims":
        axes = call.attrs.axes
        return axes is not None and [int(axis) for axis in axes] == list(range(len(axes)))
    if operator == "relax.concat":
        return len(call.args[0].fields) == 1
    if operator == "relax.strided_slice":
        # All of an axis, in steps of 1: a step of -1 reverses without changing the shape.
        return len(call.args) < 5 or all(int(step) == 1 for step in call.args[4].fields)
    return True


def _dropout_input(flow: Dataflow, value: Any) -> Any:
    """Dropout does nothing at inference."""
    if not isinstance(value, relax.TupleGetItem) or value.index != 0:
        return None
    source = flow.position.get(value.tuple_value)
    if source is None or flow.operators[source] != "relax.nn.dropout":
        return None
    return flow.value(source).args[0]


def clip_for_bounds(flow: Dataflow, position: int) -> Any:
    """Rewrite ``minimum(maximum(x, low), high)`` with scalar bounds as ``clip``."""
    high = _float_constant_operand(flow, position, "relax.minimum")
    inner = flow.value(position).args[0] if high is not None and high.size == 1 else None
    source = flow.position.get(inner)
    if source is None:
        return None
    low = _float_constant_operand(flow, source, "relax.maximum")
    if flow.operators[source] == "relax.nn.relu":
        low = np.zeros(())
    if low is None or low.size != 1:
        return None
    operand = flow.value(source).args[0]
    lowest, highest = float(low.reshape(())), float(high.reshape(()))
    # The wrong way round, the order of the two operators decides.
    if lowest > highest or not _same_type(operand, flow.value(position)):
        return None
    return relax.op.clip(operand, lowest, highest)


def relu_for_maximum(flow: Dataflow, position: int) -> Any:
    """Rewrite ``maximum(x, 0)`` as ``relu(x)``."""
    bound = _float_constant_operand(flow, position, "relax.maximum")
    if bound is None or bound.size != 1 or bound.any():
        return None
    operand = flow.value(position).args[0]
    return relax.op.nn.relu(operand) if _same_type(operand, flow.value(position)) else None


def _float_constant_operand(flow: Dataflow, position: int, operator: str) -> Any:
    """Return the second operand in float64, if it is a constant of a float operator."""
    if flow.operators[position] != operator:
        return None
    operand = flow.value(position).args[1]
    value = constant(operand)
    if value is None or not operators.is_float(operators.dtype(operand)):
        return None
    return value.astype(np.float64)


def _same_type(left: Any, right: Any) -> bool:
    shape = operators.shape(left)
    return (
        shape is not None
        and shape == operators.shape(right)
        and operators.dtype(left) == operators.dtype(right)
    )

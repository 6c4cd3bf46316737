"""What each Relax operator is and how much it computes: one table.

A kind says how an operator moves data (see :data:`tvmfuse.plan.OpKind`), a
family names the kernels that run it alone. Anything not listed is opaque.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from functools import cache
from types import MappingProxyType
from typing import Any

from tvmfuse._tvm import recurrence, relax, tirx, tvm
from tvmfuse.plan import INLINED, OpKind

# Elementwise operators by their cost in floating-point operations per element. A
# transcendental function counts as the polynomial that computes it, roughly.
_ELEMENTWISE = {
    1: (
        "abs add bitwise_and bitwise_not bitwise_or bitwise_xor ceil equal floor greater "
        "greater_equal isfinite isinf isnan left_shift less less_equal logical_and logical_not "
        "logical_or logical_xor maximum minimum multiply negative nn.relu not_equal right_shift "
        "round sign square subtract trunc where astype"
    ),
    2: "clip dequantize ewise_fma nn.leakyrelu nn.prelu quantize",
    4: "divide floor_divide floor_mod mod rsqrt sqrt",
    10: "exp log nn.softplus sigmoid nn.silu nn.selu tanh erf log_add_exp",
    15: ("nn.gelu nn.gelu_tanh power sin cos tan sinh cosh asin acos atan asinh acosh atanh atan2"),
}

# Operators that only move elements.
_INJECTIVE = (
    "arange broadcast_to concat eye flip full full_like gather_elements gather_nd "
    "image.resize2d image.resize3d index_tensor layout_transform nn.pad nn.pixel_shuffle "
    "one_hot ones ones_like permute_dims repeat split stack strided_slice take tile tril triu "
    "zeros zeros_like"
)

# Reductions by their cost in floating-point operations per element read.
_REDUCTION = {
    1: "argmax argmin max mean min prod sum",
    4: "std variance",
    8: "nn.batch_norm nn.group_norm nn.instance_norm nn.layer_norm nn.rms_norm",
    14: "nn.log_softmax nn.softmax",
}

NORMS = ("relax.nn.layer_norm", "relax.nn.rms_norm")
"""Normalisations over the last axes."""

_POOLING = (
    "nn.adaptive_avg_pool1d nn.adaptive_avg_pool2d nn.adaptive_avg_pool3d nn.avg_pool1d "
    "nn.avg_pool2d nn.avg_pool3d nn.max_pool1d nn.max_pool2d nn.max_pool3d"
)

_CONV = "nn.conv1d nn.conv1d_transpose nn.conv2d nn.conv2d_transpose nn.conv3d nn.conv3d_transpose"

_VIEW = "expand_dims flatten nn.batch_flatten reshape squeeze"


def kind(call: Any) -> OpKind:
    """Return the kind of an operator call.

    An elementwise operator with an operand that is stretched is "broadcast".

    Parameters
    ----------
    call : relax.Call
        A normalised call of an operator.
    """
    listed = _listed(name(call))
    if listed != "elementwise":
        return listed
    out = shape(call)
    if all(shape(arg) == out for arg in tensors(call)):
        return "elementwise"
    return "broadcast"


def is_elementwise(operator: str) -> bool:
    """Tell whether an operator is "elementwise", or "broadcast" where an operand is stretched."""
    return _listed(operator) == "elementwise"


def is_anchor(operator: str) -> bool:
    """Tell whether an operator does more than to move elements or compute each by itself."""
    return _listed(operator) not in INLINED


def family(call: Any) -> str:
    """Return the kernel family that runs an operator alone."""
    if name(call) == "relax.nn.conv2d":
        return "conv2d"
    if name(call) in recurrence.OPERATORS:
        return "recurrent"
    return _FAMILY_OF_KIND.get(kind(call), "opaque")


def flops(call: Any) -> int:
    """Return floating-point operations of a call; a multiply-add counts as two.

    A symbolic extent counts as 1.
    """
    operator = name(call)
    if operator in recurrence.OPERATORS:
        return recurrence.flops(call)
    listed, cost = _table().get(operator, ("opaque", 0))
    if listed in ("elementwise", "broadcast"):
        return cost * _size(call)
    if listed == "reduction":
        return cost * _size(call.args[0])
    if listed == "pooling":
        return _pooling_flops(call)
    if listed == "matmul":
        return 2 * _size(call) * _extent(call.args[0], -1)
    if listed == "conv":
        return _conv_flops(call)
    return 0


def name(call: Any) -> str:
    """Return the operator of a call, for example ``relax.add``; "" where it is none."""
    op = getattr(call, "op", None)
    return str(op.name) if isinstance(op, tvm.ir.Op) else ""


def is_norm_of_rows(call: Any) -> bool:
    """Tell whether one of :data:`NORMS` runs over the last axis of several rows."""
    known = shape(call) or ("?",)
    axes = [int(axis) % len(known) for axis in call.attrs.axes]
    is_static = all(isinstance(extent, int) for extent in known) and len(known) > 1
    return is_static and axes == [len(known) - 1]


def shape(expr: Any) -> tuple[int | str, ...] | None:
    """Return the extents of a tensor, a symbolic one as text; None where unknown."""
    return extents(expr.ty)


def extents(ty: Any) -> tuple[int | str, ...] | None:
    """Return the extents of a tensor type, a symbolic one as text; None where unknown."""
    if not isinstance(ty, relax.TensorType) or not isinstance(ty.shape, relax.ShapeExpr):
        return None
    # A slice is a list, read much faster than TVM's arrays are walked.
    return tuple(
        int(extent) if isinstance(extent, tirx.IntImm) else str(extent)
        for extent in ty.shape.values[:]
    )


def dtype(expr: Any) -> str:
    """Return the element type of a tensor, spelled as NumPy spells it."""
    return str(expr.ty.dtype)


def is_float(dtype: str) -> bool:
    """Tell whether NumPy computes with ``dtype`` as IEEE floating point."""
    return dtype in ("float16", "float32", "float64")


def tensors(call: Any) -> list[Any]:
    """Return the tensor arguments of a call, those inside tuples too."""
    found = []
    for arg in call.args:
        fields = arg.fields if isinstance(arg, relax.Tuple) else [arg]
        found += [field for field in fields if isinstance(field.ty, relax.TensorType)]
    return found


def is_groupable(call: Any) -> bool:
    """Tell whether a call can become a kernel of its own.

    It must be a pure operator on tensors of known shape that TVM can legalise;
    views move no data and stay outside.
    """
    return (
        is_pure(name(call))
        and not is_view(name(call))
        and _has_known_shape(call.ty)
        and all(_is_plain(arg) for arg in call.args)
    )


@cache
def is_pure(operator: str) -> bool:
    """Tell whether an operator has no side effect and TVM can legalise it."""
    return has_no_effect(operator) and _is_marked(operator, "FLegalize")


def has_no_effect(operator: str) -> bool:
    """Tell whether an operator does nothing but return its result."""
    return bool(operator) and _is_marked(operator, "FPurity")


def _is_marked(operator: str, key: str) -> bool:
    op = tvm.ir.Op.get(operator)
    return bool(op.has_attr(key) and op.get_attr(key))


def is_view(operator: str) -> bool:
    """Tell whether an operator only gives a tensor another shape."""
    return operator.removeprefix("relax.") in _VIEW.split()


_FAMILY_OF_KIND: Mapping[OpKind, str] = MappingProxyType(
    {
        "matmul": "matmul",
        "reduction": "reduction",
        "pooling": "pooling",
        "elementwise": "elementwise",
        "broadcast": "elementwise",
        "injective": "injective",
    }
)


def _listed(operator: str) -> OpKind:
    return _table().get(operator, ("opaque", 0))[0]


@cache
def _table() -> Mapping[str, tuple[OpKind, int]]:
    table: dict[str, tuple[OpKind, int]] = {}

    def add(names: str, listed: OpKind, cost: int = 0) -> None:
        table.update({f"relax.{item}": (listed, cost) for item in names.split()})

    for cost, names in _ELEMENTWISE.items():
        add(names, "elementwise", cost)
    for cost, names in _REDUCTION.items():
        add(names, "reduction", cost)
    add(_INJECTIVE, "injective")
    add(_POOLING, "pooling")
    add(_CONV, "conv")
    add(_VIEW, "view")
    add("matmul", "matmul")
    return table


def _conv_flops(call: Any) -> int:
    """Count a convolution: every output meets every tap of its filter.

    Transposed, every input is spread over every tap instead.
    """
    is_transposed = name(call).endswith("_transpose")
    weight = call.args[1]
    filters = _extent(weight, str(call.attrs.kernel_layout).index("I" if is_transposed else "O"))
    centres = _size(call.args[0]) if is_transposed else _size(call)
    return 2 * centres * _size(weight) // max(filters, 1)


def _pooling_flops(call: Any) -> int:
    pool_size = getattr(call.attrs, "pool_size", None)
    if pool_size is None:  # adaptive: every input element is read about once
        return _size(call.args[0])
    return _size(call) * math.prod(int(extent) for extent in pool_size)


def _size(expr: Any) -> int:
    return math.prod(extent if isinstance(extent, int) else 1 for extent in shape(expr) or ())


def _extent(expr: Any, axis: int) -> int:
    known = shape(expr)
    extent = known[axis] if known else 1
    return extent if isinstance(extent, int) else 1


def _is_plain(arg: Any) -> bool:
    """Tell whether an argument is a tensor, or known when compiling."""
    if isinstance(arg.ty, relax.TensorType):
        return shape(arg) is not None
    if isinstance(arg, relax.Tuple):
        return all(_is_plain(field) for field in arg.fields)
    if isinstance(arg.ty, relax.TupleType):
        return _has_known_shape(arg.ty)
    return not isinstance(arg, relax.Var)


def _has_known_shape(ty: Any) -> bool:
    if isinstance(ty, relax.TupleType):
        return all(_has_known_shape(field) for field in ty.fields)
    return isinstance(ty, relax.TensorType) and isinstance(ty.shape, relax.ShapeExpr)

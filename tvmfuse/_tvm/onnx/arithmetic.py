"""Repairs of element types in TVM 0.27's ONNX importer.

* ``Pow`` with a base and an exponent of different types is refused, and one of
  integers cannot be compiled.
* ``Equal`` on booleans becomes a floating-point comparison of single bits,
  which LLVM rejects.
* ``ReduceMean`` of int32 is declared int32 and returns int64.
"""

from __future__ import annotations

import math

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, dtype_of, extents, is_tensor


def convert_pow(node: Node) -> relax.Expr:
    """Convert ``Pow``: the result has the type of the base.

    Integers are raised in float64, which is exact up to 2**53.
    """
    base, exponent = node.inputs
    if not (is_tensor(base) and is_tensor(exponent)):
        return node.default()
    dtype = dtype_of(base)
    if "float" in dtype:
        return relax.op.power(base, _cast(exponent, dtype))
    power = relax.op.power(_cast(base, "float64"), _cast(exponent, "float64"))
    if "float" not in dtype_of(exponent):
        power = relax.op.round(power)
    return relax.op.astype(power, dtype)


def convert_equal(node: Node) -> relax.Expr:
    """Convert ``Equal``: booleans are equal where their exclusive or is false."""
    left, right = node.inputs
    if not (is_tensor(left) and is_tensor(right)) or dtype_of(left) != "bool":
        return node.default()
    return relax.op.logical_not(relax.op.logical_xor(left, right))


def convert_reduce_mean(node: Node) -> relax.Expr:
    """Convert ``ReduceMean``: integers are summed and divided as integers."""
    data = node.inputs[0]
    shape = extents(data)
    if "float" in dtype_of(data) or shape is None:
        return node.default()
    axes = node.attrs.get("axes")
    operands = [data, node.input(1) if axes is None else relax.const(list(axes), "int64")]
    attrs = {name: value for name, value in node.attrs.items() if name != "axes"}
    total = node.emit(node.convert("ReduceSum", operands, attrs))
    count = math.prod(shape) // math.prod(extents(total) or ())
    return relax.op.divide(total, relax.const(count, dtype_of(data)))


def _cast(value: relax.Expr, dtype: str) -> relax.Expr:
    return value if dtype_of(value) == dtype else relax.op.astype(value, dtype)

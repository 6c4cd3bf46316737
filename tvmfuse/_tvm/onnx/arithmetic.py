"""Repairs of element types in TVM 0.27's ONNX importer.

* ``Pow`` with a base and an exponent of different types is refused.
* ``Equal`` on booleans becomes a floating-point comparison of single bits,
  which LLVM rejects.
* ``ReduceMean`` of int32 returns int64.
"""

from __future__ import annotations

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, dtype_of, is_tensor


def convert_pow(node: Node) -> relax.Expr:
    """Convert ``Pow``: the result has the type of the base."""
    base, exponent = node.inputs
    if not (is_tensor(base) and is_tensor(exponent)) or dtype_of(base) == dtype_of(exponent):
        return node.default()
    result = dtype_of(base)
    if "float" in dtype_of(exponent) and "float" not in result:
        wide = relax.op.power(relax.op.astype(base, dtype_of(exponent)), exponent)
        return relax.op.astype(wide, result)
    return relax.op.power(base, relax.op.astype(exponent, result))


def convert_equal(node: Node) -> relax.Expr:
    """Convert ``Equal``: booleans are equal where their exclusive or is false."""
    left, right = node.inputs
    if not (is_tensor(left) and is_tensor(right)) or dtype_of(left) != "bool":
        return node.default()
    return relax.op.logical_not(relax.op.logical_xor(left, right))


def convert_reduce_mean(node: Node) -> relax.Expr:
    """Convert ``ReduceMean``: the result has the type of the operand."""
    mean = node.builder.normalize(node.default())
    dtype = dtype_of(node.inputs[0])
    return mean if dtype_of(mean) == dtype else relax.op.astype(mean, dtype)

"""``Constant``, ``EyeLike`` and ``Unsqueeze`` in each of the forms that ONNX allows.

TVM 0.27's ONNX importer takes a constant from a tensor only, not from the numbers that
folding a shape writes, and iterates over axes, which PyTorch writes as a scalar at times.
"""

from __future__ import annotations

import numpy as np
from onnx import helper

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, dtype_of, extents, is_constant

_NUMBERS = {
    "value_float": "float32",
    "value_floats": "float32",
    "value_int": "int64",
    "value_ints": "int64",
}


def convert_constant(node: Node) -> relax.Expr:
    """Convert ``Constant`` from a tensor or from numbers."""
    found = [name for name in _NUMBERS if name in node.attrs]
    if not found:
        return node.default()
    dtype = _NUMBERS[found[0]]
    return relax.const(np.array(node.attrs[found[0]], dtype), dtype)


def convert_eye_like(node: Node) -> relax.Expr:
    """Convert ``EyeLike`` of a known shape: TVM 0.27 fails where no diagonal is left."""
    shape = extents(node.inputs[0])
    if shape is None:
        return node.default()
    kind = node.attrs.get("dtype")
    dtype = str(helper.tensor_dtype_to_np_dtype(kind)) if kind else dtype_of(node.inputs[0])
    rows, columns = shape
    return relax.const(np.eye(rows, columns, int(node.attrs.get("k", 0))), dtype)


def convert_unsqueeze(node: Node) -> relax.Expr:
    """Convert ``Unsqueeze`` with its axes as a vector."""
    axes = node.input(1)
    if axes is None or not is_constant(axes) or node.array(1).ndim:
        return node.default()
    return node.convert(
        node.op, [node.inputs[0], relax.const(node.array(1).reshape(1))], node.attrs
    )

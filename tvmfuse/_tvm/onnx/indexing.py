"""``Gather`` and ``GatherElements`` that never read outside their data.

TVM 0.27's ONNX importer lets any index through, and the kernel reads whatever
lies there. Constant indices are checked here when importing; those that come
at run time are clamped. With known extents, a negative constant index needs no
arithmetic at run time either.
"""

from __future__ import annotations

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, dtype_of, extents, is_constant, is_tensor


def convert_gather(node: Node) -> relax.Expr:
    """Convert ``Gather`` along an axis of known extent."""
    data, indices = node.inputs
    axis = int(node.attrs.get("axis", 0))
    extent = _extent(node, axis)
    if extent is None or (is_constant(data) and is_constant(indices)):
        return node.default()
    return relax.op.take(data, _wrapped(node, extent), axis, mode="clip")


def convert_gather_elements(node: Node) -> relax.Expr:
    """Convert ``GatherElements``, checking constant indices."""
    extent = _extent(node, int(node.attrs.get("axis", 0)))
    if extent is None or not is_constant(node.inputs[1]):
        return node.default()
    return node.convert(node.op, [node.inputs[0], _wrapped(node, extent)], node.attrs)


def _extent(node: Node, axis: int) -> int | None:
    """Return how many places there are to take from; check constant indices against it."""
    data, indices = node.inputs
    shape = extents(data) if is_tensor(data) and is_tensor(indices) else None
    if shape is None or not -len(shape) <= axis < len(shape):
        return None
    if is_constant(indices):
        wrong = [i for i in node.array(1).ravel().tolist() if not -shape[axis] <= i < shape[axis]]
        if wrong:
            raise ValueError(f"index {wrong[0]} is outside of {shape[axis]} elements")
    return shape[axis]


def _wrapped(node: Node, extent: int) -> relax.Expr:
    """Return the indices counted from the front."""
    indices = node.inputs[1]
    if is_constant(indices):
        array = node.array(1)
        return relax.const(np.where(array < 0, array + extent, array).astype(array.dtype))
    dtype = dtype_of(indices)
    if dtype.startswith("uint"):
        return indices
    shifted = relax.op.add(indices, relax.const(extent, dtype))
    return node.emit(
        relax.op.where(relax.op.less(indices, relax.const(0, dtype)), shifted, indices)
    )

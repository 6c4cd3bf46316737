"""``Gather`` and ``GatherElements`` that never read outside, ``Compress``, ``OneHot``, ``TopK``.

TVM 0.27's ONNX importer lets any index through, and the kernel reads whatever
lies there. Constant indices are checked here when importing; those that come
at run time are clamped. With known extents, a negative constant index needs no
arithmetic at run time either.

It also makes ``OneHot`` of Python's floats, which are float64, and refuses a ``TopK`` whose
order does not matter.
"""

from __future__ import annotations

import numpy as np

from tvmfuse._tvm import relax, tirx
from tvmfuse._tvm.onnx.node import Node, dtype_of, extents, is_constant, is_tensor


def convert_gather(node: Node) -> relax.Expr:
    """Convert ``Gather`` along an axis of known extent."""
    data, indices = node.inputs
    axis = int(node.attrs.get("axis", 0))
    extent = _extent(node, axis)
    if extent is None or (is_constant(data) and is_constant(indices)):
        return node.default()
    return relax.op.take(data, _wrapped(node, 1, extent), axis, mode="clip")


def convert_gather_elements(node: Node) -> relax.Expr:
    """Convert ``GatherElements``, checking constant indices."""
    extent = _extent(node, int(node.attrs.get("axis", 0)))
    if extent is None or not is_constant(node.inputs[1]):
        return node.default()
    return node.convert(node.op, [node.inputs[0], _wrapped(node, 1, extent)], node.attrs)


def convert_compress(node: Node) -> relax.Expr:
    """Convert ``Compress`` by a known condition: its result has a known shape."""
    if not is_constant(node.input(1)):
        return node.default()
    data, axis = node.inputs[0], node.attrs.get("axis")
    if axis is None:
        data, axis = node.emit(relax.op.reshape(data, (-1,))), 0
    places = np.flatnonzero(node.array(1)).astype("int64")
    return relax.op.take(data, relax.const(places, "int64"), int(axis), mode="clip")


def convert_one_hot(node: Node) -> relax.Expr:
    """Convert ``OneHot`` of a known depth; an index outside of it marks no place."""
    depth = int(node.array(1).item())
    off, on = (relax.prim_value(tirx.const(v.item(), str(v.dtype))) for v in node.array(2))
    indices = _wrapped(node, 0, depth)
    if "int" not in dtype_of(indices):
        indices = relax.op.astype(indices, "int64")
    return relax.op.one_hot(indices, on, off, depth, int(node.attrs.get("axis", -1)))


def convert_top_k(node: Node) -> relax.Expr:
    """Convert ``TopK``; where any order will do it is the sorted one."""
    return node.convert(node.op, node.inputs, {**node.attrs, "sorted": 1})


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


def _wrapped(node: Node, index: int, extent: int) -> relax.Expr:
    """Return an operand, which holds places, counted from the front."""
    indices = node.inputs[index]
    if is_constant(indices):
        array = node.array(index)
        return relax.const(np.where(array < 0, array + extent, array).astype(array.dtype))
    dtype = dtype_of(indices)
    if dtype.startswith("uint"):
        return indices
    shifted = relax.op.add(indices, relax.const(extent, dtype))
    return node.emit(
        relax.op.where(relax.op.less(indices, relax.const(0, dtype)), shifted, indices)
    )

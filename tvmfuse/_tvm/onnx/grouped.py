"""Weights of 4 or 8 bits whose groups have a scale each, which TVM 0.27's importer lacks.

``DequantizeLinear`` with ``block_size`` and com.microsoft's ``MatMulNBits`` become
arithmetic on the stored integers, which the compiler leaves to the product that reads it.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx

from tvmfuse._tvm import relax, tvm
from tvmfuse._tvm.onnx.node import Node, dtype_of, extents, is_constant

Array = np.ndarray[Any, Any]

_BITS = (4, 8)


def array_of(tensor: onnx.TensorProto) -> Any:
    """Return a tensor's values as TVM takes them: integers of 4 bits in a byte each."""
    array = onnx.numpy_helper.to_array(tensor).reshape(tuple(tensor.dims))
    narrow = (onnx.TensorProto.INT4, onnx.TensorProto.UINT4)
    if tensor.data_type in narrow:
        array = array.astype("int8" if tensor.data_type == narrow[0] else "uint8")
    return tvm.runtime.tensor(array)


def convert_dequantize_linear(node: Node) -> relax.Expr:
    """Convert ``DequantizeLinear``, in blocks as well."""
    size = int(node.attrs.get("block_size", 0))
    if not size:
        return node.default()
    x, scale = node.inputs[:2]
    shape = extents(x)
    if shape is None or not is_constant(scale):
        raise NotImplementedError("blocks need a known shape and constant scales")
    axis, dtype = int(node.attrs.get("axis", 1)) % len(shape), dtype_of(scale)
    offset = node.array(2) if node.input(2) is not None else np.zeros((), "int8")
    if shape[axis] % size:
        scales, offsets = (
            _spread(part, axis, size, shape[axis]) for part in (node.array(1), offset)
        )
        return _affine(node, x, scales, offsets, dtype)
    parted = (*shape[:axis], shape[axis] // size, size, *shape[axis + 1 :])
    scales, offsets = (
        np.expand_dims(part, axis + 1) if part.ndim else part for part in (node.array(1), offset)
    )
    whole = relax.const(node.array(0).reshape(parted)) if is_constant(x) else None
    whole = node.emit(relax.op.reshape(x, parted)) if whole is None else whole
    return relax.op.reshape(node.emit(_affine(node, whole, scales, offsets, dtype)), shape)


def convert_matmul_n_bits(node: Node) -> relax.Expr:
    """Convert ``MatMulNBits``: rows times a packed weight (n, blocks, bytes), and a bias."""
    bits, size = int(node.attrs.get("bits", 4)), int(node.attrs["block_size"])
    k, n = int(node.attrs["K"]), int(node.attrs["N"])
    if bits not in _BITS:
        raise NotImplementedError(f"weights of 4 or 8 bits are supported, but found {bits}")
    if node.input(4) is not None:
        raise NotImplementedError("g_idx, an order of the columns, is not supported")
    blocks = -(-k // size)
    dtype = dtype_of(node.inputs[0])
    values = _unpacked(node.array(1).reshape(n, blocks, -1), bits)[:, :, :size]
    scales = node.array(2).reshape(n, blocks, 1)
    offsets = np.full((1, 1, 1), 2 ** (bits - 1), "int32")
    if node.input(3) is not None:
        given = node.array(3).reshape(n, -1)
        packed = _unpacked(given, bits) if given.dtype == np.uint8 else given
        offsets = packed[:, :blocks].reshape(n, blocks, 1)
    parts = [part.transpose(1, 2, 0) for part in (values, scales, offsets)]
    if k % size:  # the last block is filled up
        values, scales, offsets = (
            np.broadcast_to(part, (blocks, size, n)).reshape(-1, n)[:k] for part in parts
        )
        parts = [np.ascontiguousarray(values), scales, offsets]
    stored = relax.const(np.ascontiguousarray(parts[0]), "uint8")
    weight = node.emit(_affine(node, stored, parts[1], parts[2], dtype))
    weight = node.emit(relax.op.reshape(weight, (k, n)))
    product = relax.op.matmul(node.inputs[0], weight)
    bias = node.input(5)
    return product if bias is None else relax.op.add(node.emit(product), bias)


def _affine(node: Node, x: Any, scale: Array, offset: Array, dtype: str) -> relax.Expr:
    """Return ``(x - offset) * scale`` as ``dtype``; an offset of zero is left out."""
    value = relax.op.astype(x, dtype)
    if offset.any():
        shift = relax.const(offset.astype(dtype), dtype)
        value = relax.op.subtract(node.emit(value), shift)
    return relax.op.multiply(node.emit(value), relax.const(scale.astype(dtype), dtype))


def _spread(part: Array, axis: int, size: int, extent: int) -> Array:
    """Return a number for each element of an axis whose last block is not full."""
    if not part.ndim:
        return part
    return np.take(np.repeat(part, size, axis), np.arange(extent), axis)


def _unpacked(stored: Array, bits: int) -> Array:
    """Return the integers in bytes, the lower bits first, along the last axis."""
    if bits == 8:
        return stored
    both = np.stack([stored & 15, stored >> 4], -1)
    return both.reshape(*stored.shape[:-1], -1)

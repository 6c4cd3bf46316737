"""``RotaryEmbedding`` of ONNX (opset 23) and of com.microsoft, which TVM 0.27 lacks.

Both rotate pairs of a head by angles that are looked up: halves of it, or neighbours.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, dtype_of, extents

_HEADS_RANK = 4


def convert_rotary_embedding(node: Node) -> relax.Expr:
    """Convert ONNX's operator: data, cosines, sines and, for tables of them, positions."""
    positions = node.input(3)
    tables = [node.inputs[1], node.inputs[2]]
    if positions is not None:
        tables = [_looked_up(node, table, positions) for table in tables]
    return _rotated(node, node.inputs[0], tables)


def convert_microsoft_rotary_embedding(node: Node) -> relax.Expr:
    """Convert com.microsoft's operator: data, positions, tables of cosines and sines."""
    x, positions = node.inputs[:2]
    if int(node.attrs.get("is_packed_batching", 0)) or float(node.attrs.get("scale", 1.0)) != 1.0:
        raise NotImplementedError("is_packed_batching and scale are not supported")
    shape = extents(x)
    if extents(positions) == (1,) and shape is not None:
        dtype = dtype_of(positions)
        count = np.arange(shape[-2]).reshape(1, -1)
        positions = node.emit(relax.op.add(positions, relax.const(count, dtype)))
    tables = [_looked_up(node, table, positions) for table in node.inputs[2:4]]
    return _rotated(node, x, tables)


def _looked_up(node: Node, table: Any, positions: Any) -> Any:
    return node.emit(relax.op.take(table, positions, axis=0, mode="clip"))


def _rotated(node: Node, x: Any, tables: list[Any]) -> relax.Expr:
    """Rotate heads by angles (batch or 1, rows, half of the rotated width)."""
    shape = extents(x)
    if shape is None:
        raise NotImplementedError("the shape of the data must be known")
    heads, is_flat = x, len(shape) < _HEADS_RANK
    if is_flat:  # (batch, rows, heads * width)
        batch, rows, hidden = shape
        count = int(node.attrs.get("num_heads", 0)) or _count(node, hidden, tables[0])
        heads = node.emit(relax.op.reshape(x, (batch, rows, count, hidden // count)))
    width = (extents(heads) or ())[-1]
    wide = int(node.attrs.get("rotary_embedding_dim", 0)) or width
    axis = 2 if is_flat else 1  # of the heads
    cos, sin = (node.emit(relax.op.expand_dims(table, axis)) for table in tables)
    if (extents(cos) or (0,))[-1] * 2 != wide:
        raise ValueError(f"angles of half the width {wide} are required, but found {cos.ty}")
    turned = _turned(node, heads, (cos, sin), wide)
    if wide < width:
        rest = _part(heads, wide, width, 1)
        turned = relax.op.concat([node.emit(turned), node.emit(rest)], axis=-1)
    return relax.op.reshape(node.emit(turned), shape) if is_flat else turned


def _count(node: Node, hidden: int, table: Any) -> int:
    """Return the number of heads of rows that are not parted, which are rotated whole."""
    if int(node.attrs.get("rotary_embedding_dim", 0)):
        raise ValueError("num_heads is required where only a part of each head is rotated")
    return hidden // (2 * (extents(table) or (hidden,))[-1])


def _turned(node: Node, x: Any, angles: tuple[Any, Any], wide: int) -> relax.Expr:
    cos, sin = angles
    half = wide // 2
    is_interleaved = bool(node.attrs.get("interleaved", 0))
    first = (0, wide, 2) if is_interleaved else (0, half, 1)
    second = (1, wide, 2) if is_interleaved else (half, wide, 1)
    real, imaginary = (node.emit(_part(x, *place)) for place in (first, second))
    products = [
        relax.op.subtract(relax.op.multiply(real, cos), relax.op.multiply(imaginary, sin)),
        relax.op.add(relax.op.multiply(real, sin), relax.op.multiply(imaginary, cos)),
    ]
    parts = [node.emit(part) for part in products]
    if not is_interleaved:
        return relax.op.concat(parts, axis=-1)
    *lead, _ = extents(x) or ()
    columns = [node.emit(relax.op.expand_dims(part, -1)) for part in parts]
    joined = node.emit(relax.op.concat(columns, axis=-1))
    return relax.op.reshape(joined, (*lead, wide))


def _part(x: Any, begin: int, end: int, step: int) -> relax.Expr:
    axis = int(x.ty.ndim) - 1
    return relax.op.strided_slice(x, axes=[axis], begin=[begin], end=[end], strides=[step])

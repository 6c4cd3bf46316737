"""The shapes of a kernel's operators, as a schedule sees them."""

from __future__ import annotations

import math
from dataclasses import dataclass

from tvmfuse.plan import OpGraph, OpNode, TensorInfo

# Rows and columns of the tile that a product keeps in registers.
_TILE = 6, 16


@dataclass(frozen=True)
class Geometry:
    """A product, convolution or window as extents; 0 where there is none.

    Parameters
    ----------
    rows, columns : float
        Rows and columns of a product; pixels and output channels of a convolution.
    window, stride, channels : float
        Of a convolution or a window.
    """

    rows: float = 0.0
    columns: float = 0.0
    window: float = 0.0
    stride: float = 0.0
    channels: float = 0.0


def main(graph: OpGraph) -> Geometry:
    """Return the geometry of the operator that does most of the work."""
    heavy = [op for op in graph.ops if op.kind in ("matmul", "conv", "pooling")]
    if not heavy:
        return Geometry()
    return of(graph, max(heavy, key=lambda op: op.flops))


def of(graph: OpGraph, op: OpNode) -> Geometry:
    """Return the geometry of a product, a convolution or a window."""
    out = graph.tensors[op.outputs[0]]
    if op.kind == "matmul":
        columns = _extent(out, -1)
        return Geometry(rows=out.size / max(1, columns), columns=columns)
    image = graph.tensors[op.inputs[0]]
    channels = _extent(image, 1)
    stride = _extent(image, -1) / max(1, _extent(out, -1))
    if op.kind == "conv" and len(op.inputs) > 1:
        window = max(1, _extent(graph.tensors[op.inputs[1]], -1))
    else:
        window = math.sqrt(max(1.0, op.flops / max(1, out.size)))
    columns = _extent(out, 1)
    return Geometry(out.size / max(1, columns), columns, window, stride, channels)


def is_depthwise(graph: OpGraph, op: OpNode) -> bool:
    """Whether a convolution has one filter for each channel."""
    if op.kind != "conv" or len(op.inputs) < 2:
        return False
    weight, image = graph.tensors[op.inputs[1]], graph.tensors[op.inputs[0]]
    return _extent(weight, 1) == 1 and _extent(image, 1) > 1


def reduction_length(graph: OpGraph) -> float:
    """Return the number of terms of the longest sum."""
    return max((_terms(graph, op) for op in graph.ops), default=1.0)


def innermost(graph: OpGraph) -> float:
    """Return the extent of the last axis of the largest output."""
    outputs = [graph.tensors[i] for i in graph.outputs]
    return _extent(max(outputs, key=lambda tensor: tensor.size), -1) if outputs else 1.0


def image_channels(graph: OpGraph) -> float:
    """Return the channels of the largest image that enters, is inside or leaves; else 0."""
    images = [t for t in graph.tensors if len(t.shape) == 4 and not t.is_constant]
    return _extent(max(images, key=lambda tensor: tensor.size), 1) if images else 0.0


def stretched(graph: OpGraph) -> tuple[int, int]:
    """Return how many operands are stretched: over all but one axis, and otherwise.

    A scalar is neither.
    """
    per_channel = other = 0
    for op in graph.ops:
        if op.kind != "broadcast":
            continue
        largest = max((graph.tensors[i].size for i in op.outputs), default=1)
        for tensor in (graph.tensors[i] for i in op.inputs):
            if not 1 < tensor.size < largest:
                continue
            axes = sum(1 for extent in tensor.shape if extent != 1)
            per_channel, other = per_channel + (axes == 1), other + (axes > 1)
    return per_channel, other


def repeated_bytes(graph: OpGraph) -> float:
    """Return the bytes of outside operands that are read more than once.

    A product reads its rows once for each tile of columns and its columns once for each
    tile of rows; a window reads an element as often as it covers it; a stretched operand
    is read once for each element of the result.
    """
    made = {i for op in graph.ops for i in op.outputs}
    total = 0.0
    for op in graph.ops:
        outputs = [graph.tensors[i] for i in op.outputs]
        for position, index in enumerate(op.inputs):
            if index not in made:
                tensor = graph.tensors[index]
                reads = _reads(op, position, tensor, outputs, graph)
                total += tensor.n_bytes * (max(1.0, reads) - 1.0)
    return total


def _reads(
    op: OpNode, position: int, tensor: TensorInfo, outputs: list[TensorInfo], graph: OpGraph
) -> float:
    """Return how often an operand is read from beyond the registers."""
    size = max(1, tensor.size)
    if op.kind in ("matmul", "conv"):
        shape = of(graph, op)
        across = shape.columns / _TILE[1] if position == 0 else shape.rows / _TILE[0]
        return max(1.0, across)
    if op.kind == "pooling":
        return op.flops / size
    if op.kind in ("reduction", "view"):
        return 1.0
    return max((out.size for out in outputs), default=size) / size


def _terms(graph: OpGraph, op: OpNode) -> float:
    out = max(1, sum(graph.tensors[i].size for i in op.outputs))
    if op.kind in ("matmul", "conv"):
        return op.flops / 2 / out
    if op.kind == "pooling":
        return op.flops / out
    if op.kind == "reduction" and op.inputs:
        image = graph.tensors[op.inputs[0]]
        # A softmax or a norm keeps its shape, and sums over its last axis.
        return max(_extent(image, -1) if image.size == out else image.size / out, 1.0)
    return 1.0


def _extent(tensor: TensorInfo, axis: int) -> float:
    """Return an extent; a symbolic or missing one is 1."""
    if not -len(tensor.shape) <= axis < len(tensor.shape):
        return 1.0
    extent = tensor.shape[axis]
    return float(extent) if isinstance(extent, int) else 1.0

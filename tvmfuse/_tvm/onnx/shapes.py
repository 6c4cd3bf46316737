"""``Unsqueeze`` by a single number: PyTorch writes its axes as a scalar at times.

TVM 0.27's ONNX importer iterates over them.
"""

from __future__ import annotations

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, is_constant


def convert_unsqueeze(node: Node) -> relax.Expr:
    """Convert ``Unsqueeze`` with its axes as a vector."""
    axes = node.input(1)
    if axes is None or not is_constant(axes) or node.array(1).ndim:
        return node.default()
    return node.convert(
        node.op, [node.inputs[0], relax.const(node.array(1).reshape(1))], node.attrs
    )

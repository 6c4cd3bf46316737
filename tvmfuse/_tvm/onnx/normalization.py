"""Refuse the outputs that TVM 0.27's ONNX importer makes up.

``LayerNormalization`` may also return the mean and the inverse deviation; TVM
puts the constant 0 in their place.
"""

from __future__ import annotations

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node


def convert_layer_normalization(node: Node) -> relax.Expr:
    """Convert ``LayerNormalization``, unless more than its first output is used."""
    if node.n_outputs > 1:
        raise NotImplementedError("the outputs Mean and InvStdDev are not supported")
    converted = node.default()
    return converted[0] if isinstance(converted, relax.Tuple) else converted

"""Normalisations that TVM 0.27's ONNX importer makes up in part, or takes to pieces.

``LayerNormalization`` may also return the mean and the inverse deviation; TVM puts the
constant 0 in their place. ``InstanceNormalization`` becomes eight operators, whose
variance is a difference of large sums.
"""

from __future__ import annotations

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node, extents

_MIN_RANK = 3  # batch, channels, and what is normalised


def convert_layer_normalization(node: Node) -> relax.Expr:
    """Convert ``LayerNormalization``, unless more than its first output is used."""
    if node.n_outputs > 1:
        raise NotImplementedError("the outputs Mean and InvStdDev are not supported")
    converted = node.default()
    return converted[0] if isinstance(converted, relax.Tuple) else converted


def convert_instance_normalization(node: Node) -> relax.Expr:
    """Convert ``InstanceNormalization`` as a group norm whose groups are single channels."""
    shape = extents(node.inputs[0])
    if shape is None or len(shape) < _MIN_RANK:
        return node.default()
    return relax.op.nn.group_norm(
        *node.inputs[:3],
        num_groups=shape[1],
        channel_axis=1,
        axes=list(range(2, len(shape))),
        epsilon=float(node.attrs.get("epsilon", 1e-5)),
    )

"""Losses of classifiers, which TVM 0.27's ONNX importer lacks."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import relax
from tvmfuse._tvm.onnx.node import Node

_NO_CLASS = -100  # a label that no class has


def convert_negative_log_likelihood_loss(node: Node) -> relax.Expr:
    """Convert ``NegativeLogLikelihoodLoss``."""
    return _loss(node, node.inputs[0])


def convert_softmax_cross_entropy_loss(node: Node) -> relax.Expr:
    """Convert ``SoftmaxCrossEntropyLoss``, with the logarithms as its second output."""
    logarithms = node.emit(relax.op.nn.log_softmax(node.inputs[0], axis=1))
    return node.results(_loss(node, logarithms), logarithms)


def _loss(node: Node, logarithms: Any) -> relax.Expr:
    return relax.op.nn.nll_loss(
        logarithms,
        node.inputs[1],
        node.input(2),
        reduction=node.text("reduction", "mean"),
        ignore_index=int(node.attrs.get("ignore_index", _NO_CLASS)),
    )

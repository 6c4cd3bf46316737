"""Bring losses of classifiers into one form: the logarithm of the label's class, gathered.

``nll_loss`` is written out, so that its parts join the kernel of the log-softmax before it;
the sum of logarithms times a one-hot label is what it picks.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow

_LOGARITHM = "relax.nn.log_softmax"


def write_nll_loss_out(flow: Dataflow, position: int) -> Any:
    """Rewrite ``nll_loss`` as a gather, the weights of classes and a sum or mean.

    Labels that are to be ignored count nothing; any other is kept within the classes, so
    that no label reads beside them.
    """
    if flow.operators[position] != "relax.nn.nll_loss":
        return None
    call = flow.value(position)
    logarithms, labels, *weights = call.args
    shape = operators.shape(logarithms)
    if shape is None or len(shape) < 2 or not isinstance(shape[1], int):
        return None
    ignored = relax.op.equal(labels, _integer(int(call.attrs.ignore_index), labels))
    safe = relax.op.where(ignored, _integer(0, labels), _within(labels, shape[1]))
    dtype = operators.dtype(logarithms)
    zero = to_constant(np.array(0.0), dtype)
    picked = relax.op.gather_elements(logarithms, relax.op.expand_dims(safe, 1), axis=1)
    loss = relax.op.negative(relax.op.squeeze(picked, [1]))
    if weights:
        loss = relax.op.multiply(loss, relax.op.take(weights[0], safe, axis=0))
    loss = relax.op.where(ignored, zero, loss)
    reduction = str(call.attrs.reduction)
    if reduction == "none":
        return loss
    if reduction == "sum":
        return relax.op.sum(loss)
    one = to_constant(np.array(1.0), dtype)
    counted = relax.op.take(weights[0], safe, axis=0) if weights else one
    counted = relax.op.where(ignored, zero, counted)
    return relax.op.divide(relax.op.sum(loss), relax.op.sum(counted))


def gather_for_one_hot(flow: Dataflow, position: int) -> Any:
    """Rewrite ``sum(log_softmax(x) * one_hot(labels))`` over the classes as a gather.

    A label that is no class, whose one-hot row is zero, gives zero.
    """
    if flow.operators[position] != "relax.sum":
        return None
    call = flow.value(position)
    product = flow.private_source(position, call.args[0])
    if product is None or flow.operators[product] != "relax.multiply":
        return None
    factors = list(flow.value(product).args)
    found = [flow.position[factor] for factor in factors if factor in flow.position]
    names = [flow.operators[at] for at in found]
    if sorted(names) != sorted((_LOGARITHM, "relax.one_hot")):
        return None
    first = names.index(_LOGARITHM)
    logarithms, encoded = factors[first], flow.value(found[1 - first])
    shape = operators.shape(logarithms)
    if shape is None or call.attrs.axis is None or shape != operators.shape(encoded):
        return None
    rank = len(shape)
    axes = {int(axis) % rank for axis in call.attrs.axis}
    softmax_axis = int(flow.value(found[first]).attrs.axis) % rank
    one_hot_axis = int(encoded.attrs.axis) % rank
    on, off = (float(value.value) for value in encoded.args[1:3])
    if axes != {softmax_axis} or one_hot_axis != softmax_axis or (on, off) != (1.0, 0.0):
        return None
    labels, classes = encoded.args[0], shape[softmax_axis]
    if not isinstance(classes, int):
        return None
    safe = _within(labels, classes)
    picked = relax.op.gather_elements(
        logarithms, relax.op.expand_dims(safe, softmax_axis), axis=softmax_axis
    )
    zero = to_constant(np.array(0.0), operators.dtype(logarithms))
    is_class = relax.op.expand_dims(relax.op.equal(labels, safe), softmax_axis)
    chosen = relax.op.where(is_class, picked, zero)
    return chosen if call.attrs.keepdims else relax.op.squeeze(chosen, [softmax_axis])


def _within(labels: Any, classes: int) -> Any:
    """Return labels kept within the classes."""
    low = relax.op.maximum(labels, _integer(0, labels))
    return relax.op.minimum(low, _integer(classes - 1, labels))


def _integer(value: int, like: Any) -> Any:
    return to_constant(np.array(value), operators.dtype(like))

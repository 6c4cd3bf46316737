"""Batch normalisation at inference is a scale and a shift per channel.

Both are computed in float64 when the statistics are known; the scale then moves
into the weights of the convolution or matrix product before it (:mod:`.scale`).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import constant, narrowed, to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow


def decompose_batch_norm(flow: Dataflow, position: int) -> Any:
    """Rewrite a result of an inference batch norm as multiply and add.

    With ``training=True`` it normalises by the statistics of the batch, which is
    another computation and stays as it is.
    """
    value = flow.value(position)
    if not isinstance(value, relax.TupleGetItem):
        return None
    source = flow.position.get(value.tuple_value)
    if source is None or flow.operators[source] != "relax.nn.batch_norm":
        return None
    norm = flow.value(source)
    if norm.attrs.training:
        return None
    if value.index > 0:  # the running statistics are handed on unchanged
        return norm.args[2 + value.index]
    return _scaled_and_shifted(norm)


def _scaled_and_shifted(norm: Any) -> Any:
    data = norm.args[0]
    dtype, shape = operators.dtype(data), operators.shape(data)
    if shape is None:
        return None
    axis = int(norm.attrs.axis) % len(shape)
    folded = _known_scale_and_shift(norm) if operators.is_float(dtype) else None
    if folded is None:
        scale, shift = _computed_scale_and_shift(norm, axis)
        return relax.op.add(relax.op.multiply(data, scale), shift)
    # Statistics of float16 can need factors that float16 cannot hold.
    wide = dtype if all(narrowed(f, dtype) is not None for f in folded) else "float32"
    scale, shift = (to_constant(_along(factor, axis, len(shape)), wide) for factor in folded)
    if wide == dtype:
        return relax.op.add(relax.op.multiply(data, scale), shift)
    wide_result = relax.op.add(relax.op.multiply(relax.op.astype(data, wide), scale), shift)
    return relax.op.astype(wide_result, dtype)


def _known_scale_and_shift(norm: Any) -> tuple[Any, Any] | None:
    """Return scale and shift in float64, shape (channels,); None where not constant."""
    parameters = [constant(arg) for arg in norm.args[1:]]
    if any(parameter is None for parameter in parameters):
        return None
    gamma, beta, mean, variance = (np.asarray(p, dtype=np.float64) for p in parameters)
    scale = 1.0 / np.sqrt(variance + float(norm.attrs.epsilon))
    if norm.attrs.scale:
        scale = scale * gamma
    shift = -mean * scale
    if norm.attrs.center:
        shift = shift + beta
    return scale, shift


def _computed_scale_and_shift(norm: Any, axis: int) -> tuple[Any, Any]:
    """Return scale and shift as Relax expressions, ready to broadcast."""
    _, gamma, beta, mean, variance = norm.args
    epsilon = relax.const(float(norm.attrs.epsilon), operators.dtype(variance))
    scale = relax.op.rsqrt(relax.op.add(variance, epsilon))
    if norm.attrs.scale:
        scale = relax.op.multiply(scale, gamma)
    shift = relax.op.negative(relax.op.multiply(mean, scale))
    if norm.attrs.center:
        shift = relax.op.add(shift, beta)
    rank = norm.args[0].ty.ndim
    others = [i for i in range(rank) if i != axis]
    return relax.op.expand_dims(scale, others), relax.op.expand_dims(shift, others)


def _along(factor: Any, axis: int, rank: int) -> Any:
    return factor.reshape([-1 if i == axis else 1 for i in range(rank)])

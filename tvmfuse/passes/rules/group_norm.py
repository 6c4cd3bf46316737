"""Bring group normalisation into one form: one operator with all its parameters.

Exporters write it as an instance norm, or as a layer norm, of a view that parts the
channels into groups, with gain and offset of each channel behind the view.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import Array, constant, narrowed, to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow

_GROUP_NORM, _LAYER_NORM, _RESHAPE = "relax.nn.group_norm", "relax.nn.layer_norm", "relax.reshape"
_MIN_RANK = 3  # batch, channels, and what is normalised


def group_norm_for_views(flow: Dataflow, position: int) -> Any:
    """Rewrite ``view(norm(view(x)))`` that normalises groups of the channels of ``x``."""
    if flow.operators[position] != _RESHAPE:
        return None
    norm = flow.private_source(position, flow.value(position).args[0])
    if norm is None or flow.operators[norm] not in (_GROUP_NORM, _LAYER_NORM):
        return None
    inner = flow.value(norm)
    view = flow.private_source(norm, inner.args[0])
    if view is None or flow.operators[view] != _RESHAPE:
        return None
    x = flow.value(view).args[0]
    shape, parted = operators.shape(x), operators.shape(inner)
    if shape is None or parted is None or shape != operators.shape(flow.value(position)):
        return None
    if not _is_parted(shape, parted) or not _is_bare_norm_of_groups(inner, len(parted)):
        return None
    neutral = [to_constant(np.full(int(shape[1]), v), operators.dtype(x)) for v in (1, 0)]
    return _normalised(x, neutral, int(parted[1]), float(inner.attrs.epsilon))


def parameters_into_group_norm(flow: Dataflow, position: int) -> Any:
    """Rewrite a gain or an offset of each channel behind a group norm as one of its own."""
    operator = flow.operators[position]
    if operator not in ("relax.multiply", "relax.add"):
        return None
    call = flow.value(position)
    norm = flow.private_source(position, call.args[0])
    given = constant(call.args[1])
    if norm is None or given is None or flow.operators[norm] != _GROUP_NORM:
        return None
    inner, shape = flow.value(norm), operators.shape(call)
    known, channels = _parameters(inner), _of_channels(given, shape)
    if known is None or channels is None or shape != operators.shape(inner):
        return None
    gamma, beta = known
    if operator == "relax.multiply":
        wanted = [gamma * channels, beta * channels]
    else:
        wanted = [gamma, beta + channels]
    parameters = [narrowed(value, operators.dtype(inner)) for value in wanted]
    if any(parameter is None for parameter in parameters):
        return None
    x, groups = inner.args[0], int(inner.attrs.num_groups)
    return _normalised(x, parameters, groups, float(inner.attrs.epsilon))


def _normalised(x: Any, parameters: list[Any], groups: int, epsilon: float) -> Any:
    axes = list(range(2, int(x.ty.ndim)))
    return relax.op.nn.group_norm(
        x, *parameters, num_groups=groups, channel_axis=1, axes=axes, epsilon=epsilon
    )


def _is_parted(shape: Any, parted: Any) -> bool:
    """Whether a view of (batch, channels, ...) keeps the batch and parts the channels."""
    if not all(isinstance(extent, int) for extent in (*shape, *parted)) or len(shape) < _MIN_RANK:
        return False
    is_same_size = math.prod(shape) == math.prod(parted)
    return is_same_size and parted[0] == shape[0] and shape[1] % parted[1] == 0


def _is_bare_norm_of_groups(call: Any, rank: int) -> bool:
    """Whether a norm runs over all but the first two axes, and neither scales nor shifts."""
    axes = sorted(int(axis) % rank for axis in call.attrs.axes)
    if rank < _MIN_RANK or axes != list(range(2, rank)):
        return False
    if operators.name(call) == _GROUP_NORM:
        shape = operators.shape(call) or ()
        if int(call.attrs.channel_axis) % rank != 1 or int(call.attrs.num_groups) != shape[1]:
            return False
    gamma, beta = (constant(arg) for arg in call.args[1:])
    return gamma is not None and beta is not None and bool((gamma == 1).all() and (beta == 0).all())


def _parameters(call: Any) -> tuple[Array, Array] | None:
    """Return gain and offset of a group norm of (batch, channels, ...), where they are known."""
    rank, attrs = int(call.ty.ndim), call.attrs
    axes = sorted(int(axis) % rank for axis in attrs.axes)
    gamma, beta = (constant(arg) for arg in call.args[1:])
    if gamma is None or beta is None or int(attrs.channel_axis) % rank != 1:
        return None
    if axes != list(range(2, rank)):
        return None
    gamma, beta = gamma.astype("float64"), beta.astype("float64")
    return (
        gamma if attrs.scale else np.ones_like(gamma),
        beta if attrs.center else np.zeros_like(beta),
    )


def _of_channels(given: Array, shape: Any) -> Array | None:
    """Return a constant that varies along axis 1 only as (channels,), in float64."""
    if given.ndim > len(shape):
        return None
    wide = given.astype("float64").reshape((1,) * (len(shape) - given.ndim) + given.shape)
    if any(extent != 1 for axis, extent in enumerate(wide.shape) if axis != 1):
        return None
    return np.broadcast_to(wide.reshape(-1), (shape[1],))

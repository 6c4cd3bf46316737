"""Activations, each as a graph and in NumPy.

In a graph, constants of an activation and its attributes are free: whatever their
values, it is applied to each element alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from scipy.special import erf, expit


class Activation(NamedTuple):
    """One activation.

    Parameters
    ----------
    graph : callable
        ``graph(op, x, slope)``; only prelu has a slope.
    reference : callable
        ``reference(x, slope)`` on float64 arrays.
    """

    graph: Callable[[Any, Any, Any], Any]
    reference: Callable[[Any, Any], Any]


def _hard_sigmoid(op: Any, x: Any) -> Any:
    scaled = op.multiply(x, op.any_const(1 / 6))
    return op.clip(op.add(scaled, op.any_const(0.5)), 0.0, 1.0)


def _gelu_tanh(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))


def _per_channel(slope: Any, x: Any) -> Any:
    return slope.reshape(-1, *[1] * (x.ndim - 2))


ACTIVATIONS: Mapping[str, Activation] = MappingProxyType(
    {
        "relu": Activation(
            lambda op, x, _: op.nn.relu(x),
            lambda x, _: np.maximum(x, 0),
        ),
        "clip": Activation(
            lambda op, x, _: op.clip(x, 0.0, 6.0),
            lambda x, _: np.clip(x, 0, 6),
        ),
        "silu": Activation(
            lambda op, x, _: op.nn.silu(x),
            lambda x, _: x * expit(x),
        ),
        "hard_swish": Activation(
            lambda op, x, _: op.multiply(x, _hard_sigmoid(op, x)),
            lambda x, _: x * np.clip(x / 6 + 0.5, 0, 1),
        ),
        "hard_sigmoid": Activation(
            lambda op, x, _: _hard_sigmoid(op, x),
            lambda x, _: np.clip(x / 6 + 0.5, 0, 1),
        ),
        "gelu": Activation(
            lambda op, x, _: op.nn.gelu(x),
            lambda x, _: 0.5 * x * (1 + erf(x / np.sqrt(2))),
        ),
        "gelu_tanh": Activation(
            lambda op, x, _: op.nn.gelu_tanh(x),
            lambda x, _: _gelu_tanh(x),
        ),
        "sigmoid": Activation(
            lambda op, x, _: op.sigmoid(x),
            lambda x, _: expit(x),
        ),
        "leaky_relu": Activation(
            lambda op, x, _: op.nn.leakyrelu(x, 0.1),
            lambda x, _: np.where(x > 0, x, 0.1 * x),
        ),
        "tanh": Activation(
            lambda op, x, _: op.tanh(x),
            lambda x, _: np.tanh(x),
        ),
        "prelu": Activation(
            lambda op, x, slope: op.nn.prelu(x, slope, axis=1),
            lambda x, slope: np.where(x > 0, x, _per_channel(slope, x) * x),
        ),
    }
)

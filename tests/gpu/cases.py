"""What the kernels under test compute, in Relax and in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np

from tvmfuse._tvm import relax

Array = np.ndarray


@dataclass(frozen=True)
class Case:
    """One fused group.

    Parameters
    ----------
    name : str
        For people.
    shapes : Mapping of str to tuple of int
        Its inputs.
    relax : callable
        The computation as a Relax expression of its inputs.
    numpy : callable
        The same on arrays.
    scales : tuple of float
        Standard deviations of the inputs to try.
    dtype : str
        Element type of the inputs.
    """

    name: str
    shapes: Mapping[str, tuple[int, ...]]
    relax: Callable[..., relax.Expr]
    numpy: Callable[..., Array]
    scales: tuple[float, ...] = (1.0,)
    dtype: str = "float32"

    def inputs(self, scale: float) -> dict[str, Array]:
        """Return normally distributed inputs, the same ones each time."""
        rng = np.random.default_rng(0)
        draw = {name: rng.standard_normal(shape) for name, shape in self.shapes.items()}
        return {name: (scale * values).astype(self.dtype) for name, values in draw.items()}

    def expected(self, inputs: Mapping[str, Array]) -> Array:
        """Return what the group computes, in float64."""
        return self.numpy(**{name: array.astype("float64") for name, array in inputs.items()})


def _softmax(x: Array) -> Array:
    powers = np.exp(x - x.max(axis=-1, keepdims=True))
    return powers / powers.sum(axis=-1, keepdims=True)


def _layer_norm(x: Array, gamma: Array, beta: Array) -> Array:
    centred = x - x.mean(axis=-1, keepdims=True)
    return centred / np.sqrt(x.var(axis=-1, keepdims=True) + 1e-5) * gamma + beta


# No extent divides by a tile or a warp.
MATMUL = Case(
    "matmul + bias + relu",
    {"x": (70, 45), "w": (45, 50), "b": (50,)},
    relax=lambda x, w, b: relax.op.nn.relu(relax.op.add(relax.op.matmul(x, w), b)),
    numpy=lambda x, w, b: np.maximum(x @ w + b, 0),
)
# On Metal by matrix units; neither extent is a whole number of blocks of such tiles.
MATMUL_HALF = replace(MATMUL, name="matmul + bias + relu in half", dtype="float16")
# Large inputs: exp of the difference to anything but the maximum overflows.
SOFTMAX = Case(
    "softmax",
    {"x": (5, 300)},
    relax=lambda x: relax.op.nn.softmax(x, axis=-1),
    numpy=_softmax,
    scales=(1.0, 300.0),
)
ADD_LAYER_NORM = Case(
    "add + layer_norm",
    {"x": (5, 300), "y": (5, 300), "gamma": (300,), "beta": (300,)},
    relax=lambda x, y, gamma, beta: relax.op.nn.layer_norm(
        relax.op.add(x, y), gamma, beta, axes=-1
    ),
    numpy=lambda x, y, gamma, beta: _layer_norm(x + y, gamma, beta),
)

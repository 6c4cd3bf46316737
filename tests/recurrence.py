"""Recurrent layers to compile, and what they compute, by NumPy in float64."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tests.graphs import module
from tvmfuse import testing
from tvmfuse._tvm import relax
from tvmfuse._tvm.recurrence import DEFAULT_ACTIVATIONS, Activation, Recurrence

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Layer:
    """A layer, its operands by name, and which of them the compiler knows."""

    recurrence: Recurrence
    values: Mapping[str, Array]
    constants: frozenset[str]

    @property
    def inputs(self) -> list[Array]:
        """The operands that are inputs."""
        names = self.recurrence.operands
        return [self.values[name] for name in names if name not in self.constants]

    def module(self) -> Any:
        """Return a module that computes all results of the layer."""

        def graph(*given: Any) -> Any:
            rest = iter(given)
            operands = {
                name: _constant(self.values[name]) if name in self.constants else next(rest)
                for name in self.recurrence.operands
            }
            result = relax.BlockBuilder.current().emit(self.recurrence.call(operands))
            count = 1 + self.recurrence.states
            return [relax.TupleGetItem(result, k) for k in range(count)]

        return module(graph, *self.inputs)

    def expected(self) -> list[Array]:
        """Return all results."""
        return reference(self.recurrence, self.values)


def _constant(value: Array) -> Any:
    return relax.const(value, str(value.dtype))


def layer(
    cell: str,
    *,
    steps: int = 4,
    batch: int = 2,
    hidden: int = 5,
    backwards: tuple[bool, ...] = (False,),
    activations: Sequence[Activation] | None = None,
    optional: tuple[str, ...] = (),
    constants: tuple[str, ...] = ("weight", "bias", "peephole", "scale"),
    dtype: str = "float32",
    **variant: Any,
) -> Layer:
    """Return a layer with random operands."""
    chosen = tuple(activations or (Activation(name) for name in DEFAULT_ACTIVATIONS[cell]))
    recurrence = Recurrence(cell, backwards, (chosen,) * len(backwards), optional, **variant)
    n, columns = len(backwards), recurrence.gates * hidden
    shapes = {
        "x": (steps, batch, n * columns),
        "weight": (n, hidden, columns),
        "state": (n, batch, hidden),
        "cell": (n, batch, hidden),
        "bias": (n, hidden),
        "peephole": (n, 3 * hidden),
        "scale": (n, columns),
    }
    spread = {"weight": hidden**-0.5, "scale": 0.1}
    values = {
        name: testing.random_array(shape, dtype, seed=seed, spread=spread.get(name, 1.0))
        for seed, (name, shape) in enumerate(shapes.items())
        if name in recurrence.operands
    }
    if "scale" in optional:
        values["weight"] = testing.random_array(shapes["weight"], "int8")
    if "lengths" in optional:
        values["lengths"] = np.array([steps - 2 * b % (steps + 1) for b in range(batch)], "int32")
    return Layer(recurrence, values, frozenset(constants) & set(values))


def reference(recurrence: Recurrence, values: Mapping[str, Array]) -> list[Array]:
    """Return the results of a layer, step by step, row by row."""
    v = {name: value.astype(np.float64) for name, value in values.items()}
    if "scale" in v:
        v["weight"] = v["weight"] * v["scale"][:, None]
    steps, batch, _ = v["x"].shape
    directions, hidden, columns = v["weight"].shape
    every = np.zeros((steps, directions, batch, hidden))
    lasts = [v[name].copy() for name in ("state", "cell")[: recurrence.states]]
    for d, backward in enumerate(recurrence.backwards):
        f = [_function(a) for a in recurrence.activations[d]]
        f[:2] = [_clipped(g, recurrence.clip or math.inf) for g in f[:2]]
        for b in range(batch):
            length = int(v["lengths"][b]) if "lengths" in v else steps
            state = [last[d, b] for last in lasts]
            for t in range(length)[:: -1 if backward else 1]:
                x = v["x"][t, b, d * columns : (d + 1) * columns]
                state = _CELLS[recurrence.cell](recurrence, v, d, x, state, f)
                every[t, d, b] = state[0]
            for last, value in zip(lasts, state, strict=True):
                last[d, b] = value
    return [every, *lasts]


def _rnn(_r: Any, v: Any, d: int, x: Any, state: Any, f: Any) -> Any:
    return [f[0](x + state[0] @ v["weight"][d])]


def _gru(r: Any, v: Any, d: int, x: Any, state: Any, f: Any) -> Any:
    (h,) = state
    (xz, xr, xn), (wz, wr, wn) = np.split(x, 3), np.split(v["weight"][d], 3, axis=1)
    update, reset = f[0](xz + h @ wz), f[0](xr + h @ wr)
    bias = v["bias"][d] if "bias" in v else 0.0
    inner = reset * (h @ wn + bias) if r.reset_after else (reset * h) @ wn
    new = f[1](xn + inner)
    return [(1 - update) * new + update * h]


def _lstm(r: Any, v: Any, d: int, x: Any, state: Any, f: Any) -> Any:
    h, c = state
    read = _rounded(h) if r.rounds_state else h
    i, o, forget, g = np.split(x + read @ v["weight"][d], 4)
    pi, po, pf = np.split(v["peephole"][d], 3) if "peephole" in v else (0.0, 0.0, 0.0)
    i = f[0](i + pi * c)
    forget = 1 - i if r.input_forget else f[0](forget + pf * c)
    c = forget * c + i * f[1](g)
    return [f[0](o + po * c) * f[2](c), c]


def _rounded(h: Array) -> Array:
    low, high = min(h.min(), 0.0), max(h.max(), 0.0)
    step = (high - low) / 255 or 1.0
    middle = np.rint(-low / step)
    return (np.clip(np.rint(h / step) + middle, 0, 255) - middle) * step


_CELLS = {"rnn": _rnn, "gru": _gru, "lstm": _lstm}


def _clipped(function: Any, bound: float) -> Any:
    return lambda x: function(np.clip(x, -bound, bound))


def _function(activation: Activation) -> Any:
    a, b = activation.alpha, activation.beta
    forms = {
        "sigmoid": lambda x: 1 / (1 + np.exp(-x)),
        "tanh": np.tanh,
        "relu": lambda x: np.maximum(x, 0),
        "affine": lambda x: a * x + b,
        "leakyrelu": lambda x: np.where(x < 0, a * x, x),
        "thresholdedrelu": lambda x: np.where(x > a, x, 0),
        "scaledtanh": lambda x: a * np.tanh(b * x),
        "hardsigmoid": lambda x: np.clip(a * x + b, 0, 1),
        "elu": lambda x: np.where(x < 0, a * (np.exp(x) - 1), x),
        "softsign": lambda x: x / (1 + np.abs(x)),
        "softplus": lambda x: np.log1p(np.exp(x)),
    }
    return forms[activation.name]


VARIANTS: Mapping[str, Mapping[str, Any]] = {
    "an RNN": {"cell": "rnn"},
    "a GRU, reset before": {"cell": "gru"},
    "a GRU, reset after, with its bias": {
        "cell": "gru",
        "reset_after": True,
        "optional": ("bias",),
    },
    "an LSTM": {"cell": "lstm"},
    "an LSTM with everything, both ways": {
        "cell": "lstm",
        "backwards": (False, True),
        "optional": ("peephole", "lengths"),
        "clip": 0.7,
    },
    "an LSTM of coupled gates, backwards": {
        "cell": "lstm",
        "backwards": (True,),
        "input_forget": True,
    },
    "a ragged GRU, reset before, both ways": {
        "cell": "gru",
        "backwards": (False, True),
        "optional": ("lengths",),
    },
    "a ragged RNN backwards": {
        "cell": "rnn",
        "backwards": (True,),
        "optional": ("lengths",),
        "batch": 3,
    },
    "an LSTM with weights of bytes": {
        "cell": "lstm",
        "hidden": 19,
        "optional": ("scale",),
        "backwards": (False, True),
    },
    # Of one row: the range is that of the batch, and the reference goes row by row.
    "an LSTM whose state is rounded": {
        "cell": "lstm",
        "batch": 1,
        "hidden": 19,
        "optional": ("scale",),
        "backwards": (False, True),
        "rounds_state": True,
    },
    "a GRU with weights of bytes, reset before": {"cell": "gru", "optional": ("scale",)},
    "no step": {"cell": "gru", "steps": 0},
    "one of everything": {"cell": "lstm", "steps": 1, "batch": 1, "hidden": 1},
}
"""Layers that between them do all that there is to do."""

"""The gates of a GRU's step that is written out, with the new state.

``nn.GRUCell``, and loops over one, multiply the input and the state by the weights of three
gates each, and cut both products into thirds: what resets, what updates, what is new. All
that follows the two products is one pass over them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from scipy.special import expit

from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Case, Operand, Pattern
from tvmfuse.patterns.trace import Found

_SIZE = 8
_OPERANDS: Mapping[str, Operand] = {
    "x": Operand((3, 3 * _SIZE)),
    "y": Operand((3, 3 * _SIZE)),
    "h": Operand((3, _SIZE)),
}


def _third(op: Any, x: Any, k: int) -> Any:
    begin, end = k * _SIZE, (k + 1) * _SIZE
    return op.strided_slice(x, axes=[1], begin=[begin], end=[end], strides=[1])


def _case(name: str, *, order: tuple[int, int, int] = (0, 1, 2), **options: Any) -> Case:
    chosen = {"is_difference": True, "order": order, **options}
    return Case(name, _OPERANDS, chosen)


def _reset_too(op: Any, x: Any, y: Any, h: Any) -> Any:
    reset = op.sigmoid(op.add(_third(op, x, 0), _third(op, y, 0)))
    return _step(op, x, y, h, reset), reset


def _reset_by_tanh(op: Any, x: Any, y: Any, h: Any) -> Any:
    return _step(op, x, y, h, op.tanh(op.add(_third(op, x, 0), _third(op, y, 0))))


def _two_states(op: Any, x: Any, y: Any, h: Any, other: Any) -> Any:
    reset = op.sigmoid(op.add(_third(op, x, 0), _third(op, y, 0)))
    update = op.sigmoid(op.add(_third(op, x, 1), _third(op, y, 1)))
    new = op.tanh(op.add(_third(op, x, 2), op.multiply(reset, _third(op, y, 2))))
    return op.add(new, op.multiply(update, op.subtract(h, op.add(other, new))))


def _step(op: Any, x: Any, y: Any, h: Any, reset: Any) -> Any:
    update = op.sigmoid(op.add(_third(op, x, 1), _third(op, y, 1)))
    new = op.tanh(op.add(_third(op, x, 2), op.multiply(reset, _third(op, y, 2))))
    return op.add(new, op.multiply(update, op.subtract(h, new)))


class GruCell(Pattern):
    """The gates of a GRU's step and its new state, of the products of input and state."""

    name = "gru_cell"
    family = "elementwise"
    cases = (
        _case("gates as PyTorch orders them"),
        _case("gates as ONNX orders them", order=(1, 0, 2)),
        _case("both states weighted", is_difference=False),
    )
    near_misses = (
        Case("the reset gate is a result, too", _OPERANDS, graph=_reset_too),
        Case("the reset gate is a tanh", _OPERANDS, graph=_reset_by_tanh),
        Case("another state is added", {**_OPERANDS, "other": _OPERANDS["h"]}, graph=_two_states),
        Case(
            "all rows share a state",
            {**_OPERANDS, "h": Operand((1, _SIZE))},
            {"is_difference": True, "order": (0, 1, 2)},
        ),
        Case(
            "all rows share the input",
            {**_OPERANDS, "x": Operand((1, 3 * _SIZE))},
            {"is_difference": True, "order": (0, 1, 2)},
        ),
    )

    def options(self) -> Iterator[Mapping[str, Any]]:
        """Yield both ways to mix the states."""
        yield from ({"is_difference": is_difference} for is_difference in (True, False))

    def graph(
        self,
        op: Any,
        x: Any,
        y: Any,
        h: Any,
        *,
        is_difference: bool,
        order: tuple[int, int, int] = (0, 1, 2),
    ) -> Any:
        """Write the three gates of the products ``x`` and ``y``, and the new state."""
        r, z, n = order
        reset = op.sigmoid(op.add(_third(op, x, r), _third(op, y, r)))
        update = op.sigmoid(op.add(_third(op, x, z), _third(op, y, z)))
        new = op.tanh(op.add(_third(op, x, n), op.multiply(reset, _third(op, y, n))))
        if is_difference:
            return op.add(new, op.multiply(update, op.subtract(h, new)))
        rest = op.subtract(op.const(1.0), update)
        return op.add(op.multiply(rest, new), op.multiply(update, h))

    def reference(
        self,
        x: Any,
        y: Any,
        h: Any,
        *,
        is_difference: bool,
        order: tuple[int, int, int] = (0, 1, 2),
    ) -> Any:
        """Compute it with NumPy."""
        (xr, xz, xn), (yr, yz, yn) = ([np.split(v, 3, 1)[k] for k in order] for v in (x, y))
        update = expit(xz + yz)
        return (1 - update) * np.tanh(xn + expit(xr + yr) * yn) + update * h

    def check(self, found: Found) -> str:
        """Whatever is cut out has the shape of the state, so that nothing is stretched."""
        shape = operators.shape(found.operands["h"])
        parts = found.calls("relax.strided_slice")
        if any(operators.shape(part) != shape for part in parts):
            return "its gates must have the shape of the state"
        return ""

"""Gated linear units: two products of one tensor, one activated, multiplied in the epilogue.

SwiGLU of Llama, GeGLU of T5 and Stable Diffusion, and the plain GLU. Both products of a
tile are in cache when they are multiplied, so neither is ever stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from tvmfuse.patterns import operators
from tvmfuse.patterns.activations import ACTIVATIONS
from tvmfuse.patterns.base import Case, Operand, Pattern
from tvmfuse.patterns.trace import Found

_ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "relu", "sigmoid")
_OPERANDS: Mapping[str, Operand] = {
    "x": Operand((2, 5, 16)),
    "gate": Operand((16, 20), is_constant=True, spread=0.25),
    "up": Operand((16, 20), is_constant=True, spread=0.25),
    "gate_bias": Operand((20,), is_constant=True),
    "up_bias": Operand((20,), is_constant=True),
}


def _case(name: str, *, activation: str, is_biased: bool = False) -> Case:
    return Case(name, _OPERANDS, {"activation": activation, "is_biased": is_biased})


def _gate_read_twice(op: Any, x: Any, gate: Any, up: Any) -> Any:
    activated = op.nn.silu(op.matmul(x, gate))
    return op.multiply(activated, op.matmul(x, up)), op.exp(activated)


def _of_two_tensors(op: Any, x: Any, y: Any, gate: Any, up: Any) -> Any:
    return op.multiply(op.nn.silu(op.matmul(x, gate)), op.matmul(y, up))


def _one_depends_on_the_other(op: Any, x: Any, gate: Any) -> Any:
    activated = op.nn.silu(op.matmul(x, gate))
    return op.multiply(activated, op.matmul(activated, gate))


class Gated(Pattern):
    """``act(x @ gate) * (x @ up)``, with biases or without."""

    name = "gated"
    family = "matmul"
    cases = (
        *(_case(activation, activation=activation) for activation in _ACTIVATIONS),
        _case("with biases", activation="gelu", is_biased=True),
    )
    near_misses = (
        Case("the activated product has another reader", _OPERANDS, graph=_gate_read_twice),
        Case(
            "the products are of two tensors",
            {**_OPERANDS, "y": _OPERANDS["x"]},
            graph=_of_two_tensors,
        ),
        Case(
            "one product depends on the other",
            {"x": Operand((4, 4)), "gate": Operand((4, 4))},
            graph=_one_depends_on_the_other,
        ),
        Case(
            "one column is stretched over the others",
            {**_OPERANDS, "up": Operand((16, 1), is_constant=True)},
            {"activation": "silu", "is_biased": False},
        ),
        Case(
            "a bias varies along the rows",
            {**_OPERANDS, "up_bias": Operand((5, 1), is_constant=True)},
            {"activation": "silu", "is_biased": True},
        ),
    )

    def options(self) -> Iterator[Mapping[str, Any]]:
        """Yield every activation, with biases and without."""
        for activation, is_biased in product(_ACTIVATIONS, (False, True)):
            yield {"activation": activation, "is_biased": is_biased}

    def graph(
        self,
        op: Any,
        x: Any,
        gate: Any,
        up: Any,
        gate_bias: Any,
        up_bias: Any,
        *,
        activation: str,
        is_biased: bool,
    ) -> Any:
        """Write both products, the activation and their product."""
        left, right = op.matmul(x, gate), op.matmul(x, up)
        if is_biased:
            left, right = op.add(left, gate_bias), op.add(right, up_bias)
        return op.multiply(ACTIVATIONS[activation].graph(op, left, None), right)

    def reference(
        self,
        x: Any,
        gate: Any,
        up: Any,
        gate_bias: Any,
        up_bias: Any,
        *,
        activation: str,
        is_biased: bool,
    ) -> Any:
        """Compute it with NumPy."""
        left, right = x @ gate, x @ up
        if is_biased:
            left, right = left + gate_bias, right + up_bias
        return ACTIVATIONS[activation].reference(left, None) * right

    def check(self, found: Found) -> str:
        """Both weights have one shape, and biases vary along the columns only."""
        shapes = {operators.shape(found.operands[name]) for name in ("gate", "up")}
        if len(shapes) != 1:
            return "its two weights must have one shape"
        columns = (operators.shape(found.root) or (None,))[-1]
        for name in ("gate_bias", "up_bias"):
            bias = found.operands.get(name)
            if bias is not None and operators.shape(bias) != (columns,):
                return f"its {name} must vary along the columns only"
        return ""

"""Matrix product, bias, residual and activation in one kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tvmfuse.patterns import anchored, operators
from tvmfuse.patterns.activations import ACTIVATIONS
from tvmfuse.patterns.base import Case, Operand, Pattern
from tvmfuse.patterns.trace import Found


def _case(name: str, *, is_transposed: bool = False, **chosen: Any) -> Case:
    """Return a case of 2 x 5 rows, 7 deep, 6 wide."""
    operands = {
        "x": Operand((2, 5, 7)),
        "weight": Operand(
            (6, 7) if is_transposed else (7, 6), is_constant=not is_transposed, spread=0.4
        ),
        "scale": Operand((), is_constant=True),
        "bias": Operand((6,), is_constant=True),
        "residual": Operand((2, 5, 6)),
    }
    options = {**anchored.NOTHING, "is_transposed": is_transposed, **chosen}
    return Case(name, operands, options)


def _cases() -> tuple[Case, ...]:
    batched = {
        "x": Operand((2, 3, 4, 5)),
        "weight": Operand((2, 3, 5, 4)),
        "scale": Operand((), is_constant=True),
        "residual": Operand((2, 3, 4, 4)),
    }
    one_row = {"x": Operand((1, 9)), "weight": Operand((9, 1)), "bias": Operand((1,))}
    return (
        _case("bias alone", is_biased=True),
        *(_case(name, is_biased=True, activation=name) for name in _ACTIVATIONS),
        _case("scale, bias and gelu", is_scaled=True, is_biased=True, activation="gelu"),
        _case("bias and residual", is_biased=True, residual_at="before"),
        _case("residual after tanh", residual_at="after", activation="tanh"),
        _case("linear layer with a weight to transpose", is_transposed=True, is_biased=True),
        replace(
            _case(
                "scaled scores of attention with a full mask", is_scaled=True, residual_at="before"
            ),
            operands=batched,
        ),
        replace(
            _case("one row, one column, nothing constant", is_biased=True, activation="tanh"),
            operands=one_row,
        ),
    )


def _read_twice(op: Any, x: Any, weight: Any, bias: Any) -> Any:
    y = op.add(op.matmul(x, weight), bias)
    return op.nn.relu(y), op.exp(y)


def _bias_per_row(op: Any, x: Any, weight: Any, bias: Any) -> Any:
    return op.nn.relu(op.add(op.matmul(x, weight), bias))


def _middle_returned(op: Any, x: Any, weight: Any, bias: Any) -> Any:
    y = op.matmul(x, weight)
    return op.nn.relu(op.add(y, bias)), y


def _added_to_itself(op: Any, x: Any, weight: Any, row: Any) -> Any:
    y = op.matmul(x, weight)
    return op.nn.relu(op.add(op.add(y, row), y))


def _stacked_weights(op: Any, x: Any, weights: Any, row: Any) -> Any:
    turned = op.permute_dims(weights, axes=[0, 2, 1])
    return op.nn.relu(op.add(op.matmul(x, turned), row))


def _near_misses() -> tuple[Case, ...]:
    operands = {"x": Operand((4, 3)), "weight": Operand((3, 5)), "bias": Operand((4, 1))}
    row = {"row": Operand((5,))}
    by_rows = {
        **operands,
        "scale": Operand((4, 1)),
        "residual": Operand((4, 1)),
        "bias": row["row"],
    }
    chosen = {**anchored.NOTHING, "is_transposed": False, "activation": "relu"}
    stacked = {"x": Operand((2, 4, 3)), "weights": Operand((2, 5, 3)), **row}
    return (
        Case("the product is a result, too", operands, graph=_middle_returned),
        Case("the residual is the product itself", {**operands, **row}, graph=_added_to_itself),
        Case("a stack of weights is transposed", stacked, graph=_stacked_weights),
        Case("the scale varies along the rows", by_rows, {**chosen, "is_scaled": True}),
        Case(
            "the residual is one column",
            by_rows,
            {**chosen, "is_biased": True, "residual_at": "before"},
        ),
        Case("the biased product has two readers", operands, graph=_read_twice),
        Case("the bias varies along the rows", operands, graph=_bias_per_row),
    )


# The slope of a prelu belongs to axis 1, which in a product is rarely the channel axis.
_ACTIVATIONS = tuple(name for name in ACTIVATIONS if name != "prelu")


class MatmulBiasAct(Pattern):
    """A matrix product, batched or not, and what follows it."""

    name = "matmul_bias_act"
    family = "matmul"
    cases = _cases()
    near_misses = _near_misses()

    def options(self) -> Iterator[Mapping[str, Any]]:
        """Yield what follows, for a weight as it is and for one that is transposed first."""
        for is_transposed in (False, True):
            if is_transposed:
                yield {**anchored.NOTHING, "is_transposed": True}
            for chosen in anchored.options():
                if chosen["activation"] != "prelu":
                    yield {**chosen, "is_transposed": is_transposed}

    def graph(
        self,
        op: Any,
        x: Any,
        weight: Any,
        scale: Any,
        bias: Any,
        residual: Any,
        *,
        is_transposed: bool,
        **chosen: Any,
    ) -> Any:
        """Write the product, then scale, bias, residual and activation."""
        y = op.matmul(x, op.permute_dims(weight) if is_transposed else weight)
        return anchored.followed(op, y, (scale, bias, residual, None), chosen)

    def reference(
        self,
        x: Any,
        weight: Any,
        scale: Any,
        bias: Any,
        residual: Any,
        *,
        is_transposed: bool,
        **chosen: Any,
    ) -> Any:
        """Compute it with NumPy."""
        y = np.matmul(x, weight.T if is_transposed else weight)
        return anchored.followed_reference(y, (scale, bias, residual, None), chosen)

    def check(self, found: Found) -> str:
        """Look at the shapes of scale, bias and residual, and at the transposition."""
        for permute in found.calls("relax.permute_dims"):
            rank = len(operators.shape(permute) or ())
            if rank != 2:
                return "the weight that it transposes must have two axes"
        rank = len(operators.shape(found.root) or ())
        return anchored.check(found, channel_axis=rank - 1)

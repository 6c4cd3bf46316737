"""Two linear layers, one after the other, in one kernel: a small MLP.

The hidden layer of a classifier or of a policy network, the feed-forward block of a small
transformer. For a few rows at a time the hidden values, which may be some thousands, lie
in cache with what stands between the layers (bias, activation), and never in memory.
Three layers are one such kernel and a kernel by itself: tasks are rows, of which a second
stage would leave each core too few.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit

from tvmfuse._tvm import tvm
from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.chains import chains, matches
from tvmfuse.patterns.dataflow import Dataflow

_MAX_HIDDEN = 8192


def _block(op: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any, y: Any) -> Any:
    hidden = op.nn.silu(op.add(op.matmul(x, w1), b1))
    return op.add(y, op.tanh(op.add(op.matmul(hidden, w2), b2)))


def _block_reference(x: Any, w1: Any, b1: Any, w2: Any, b2: Any, y: Any) -> Any:
    hidden = x @ w1 + b1
    return y + np.tanh((hidden * expit(hidden)) @ w2 + b2)


def _classifier(op: Any, x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return op.add(op.matmul(op.nn.relu(op.add(op.matmul(x, w1), b1)), w2), b2)


def _classifier_reference(x: Any, w1: Any, b1: Any, w2: Any, b2: Any) -> Any:
    return np.maximum(x @ w1 + b1, 0) @ w2 + b2


def _plain(op: Any, x: Any, w1: Any, w2: Any) -> Any:
    return op.matmul(op.matmul(x, w1), w2)


def _plain_reference(x: Any, w1: Any, w2: Any) -> Any:
    return x @ w1 @ w2


def _read_elsewhere(op: Any, x: Any, w1: Any, w2: Any) -> Any:
    hidden = op.nn.relu(op.matmul(x, w1))
    return op.matmul(hidden, w2), op.exp(hidden)


def _returned(op: Any, x: Any, w1: Any, w2: Any) -> Any:
    hidden = op.nn.relu(op.matmul(x, w1))
    return op.matmul(hidden, w2), hidden


def _turned(op: Any, x: Any, w1: Any, w2: Any) -> Any:
    return op.matmul(op.permute_dims(op.matmul(x, w1), (1, 0)), w2)


def _as_weight(op: Any, x: Any, w1: Any, w2: Any) -> Any:
    return op.matmul(w2, op.matmul(x, w1))


def _normalised(op: Any, x: Any, w1: Any, w2: Any) -> Any:
    return op.matmul(op.nn.softmax(op.matmul(x, w1), axis=-1), w2)


def _cases() -> tuple[Case, ...]:
    operands = {
        "x": Operand((3, 7, 12)),
        "w1": Operand((12, 40), is_constant=True, spread=0.3),
        "b1": Operand((40,), is_constant=True),
        "w2": Operand((40, 10), is_constant=True, spread=0.15),
        "b2": Operand((10,), is_constant=True),
        "y": Operand((3, 7, 10)),
    }
    matrix = {**operands, "x": Operand((32, 12))}
    return (
        Case("a block with a residual", operands, graph=_block, reference=_block_reference),
        Case("a classifier", matrix, graph=_classifier, reference=_classifier_reference),
        Case("nothing between", matrix, graph=_plain, reference=_plain_reference),
    )


def _near_misses() -> tuple[Case, ...]:
    square = Operand((8, 8), is_constant=True)
    operands = {"x": Operand((8, 8)), "w1": square, "w2": square}
    return (
        Case("the hidden layer is read elsewhere", operands, graph=_read_elsewhere),
        Case("the hidden layer is a result, too", operands, graph=_returned),
        Case("there are no rows", {**operands, "x": Operand((0, 8))}, graph=_plain),
        Case("there is one vector", {**operands, "x": Operand((8,))}, graph=_plain),
        Case(
            "in float64",
            {name: replace(operand, dtype="float64") for name, operand in operands.items()},
            graph=_plain,
        ),
        Case("the hidden layer is turned between them", operands, graph=_turned),
        Case("the hidden layer is the second weight", operands, graph=_as_weight),
        Case("rows of the hidden layer are normalised", operands, graph=_normalised),
        Case("the first weight is no constant", {**operands, "w1": Operand((8, 8))}, graph=_plain),
        Case("the second weight is no constant", {**operands, "w2": Operand((8, 8))}, graph=_plain),
        Case(
            "each batch has a weight of its own",
            {"x": Operand((2, 8, 8)), "w1": Operand((2, 8, 8), is_constant=True), "w2": square},
            graph=_plain,
        ),
        Case(
            "the hidden layer is too wide",
            {
                "x": Operand((2, 2)),
                "w1": Operand((2, _MAX_HIDDEN + 1), is_constant=True),
                "w2": Operand((_MAX_HIDDEN + 1, 2), is_constant=True),
            },
            graph=_plain,
        ),
    )


class LinearLinear(Generator):
    """Two products by constant matrices, with what stands between and behind them."""

    name = "linear_linear"
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each pair of products, and with ever more of what follows them."""
        for first in range(len(flow.bindings)):
            if not _is_linear(flow, first):
                continue
            if int(flow.value(first).args[1].value.shape[1]) > _MAX_HIDDEN:
                continue
            for second, members in chains(flow, first):
                if _is_linear(flow, second):
                    yield from matches(flow, members, second)


def _is_linear(flow: Dataflow, position: int) -> bool:
    """Whether a binding multiplies float32 rows, how many is known, by a constant matrix."""
    if flow.operators[position] != "relax.matmul" or not flow.groupable[position]:
        return False
    call = flow.value(position)
    weight, shape = call.args[1], operators.shape(call)
    if not (isinstance(weight, tvm.ir.GenericConst) and len(weight.value.shape) == 2):
        return False
    is_static = shape is not None and all(isinstance(d, int) and d > 0 for d in shape)
    dtypes = {operators.dtype(value) for value in (call, *call.args)}
    return is_static and len(shape or ()) > 1 and dtypes == {"float32"}

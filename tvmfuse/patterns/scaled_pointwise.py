"""What is computed of every pixel before a 1 x 1 convolution, in one kernel with it.

The scale of a squeeze-and-excite block before its projection, the batch norm and the
activation of a pre-activated block (DenseNet, ResNet v2). A few rows of what the
convolution reads lie in cache, each element computed once, and nothing in memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import numpy as np

from tvmfuse.patterns import operators, references
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.chains import is_whole_pointwise, matches
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.epilogue import prefixes

_MAX_BEFORE = 6
# What leaves the lanes of a last block that hold no channel finite.
_FINITE = (
    "add clip maximum minimum multiply negative nn.gelu nn.gelu_tanh nn.leakyrelu nn.relu nn.silu "
    "sigmoid square subtract tanh"
)
_BEFORE = frozenset(f"relax.{name}" for name in _FINITE.split())


def _excited(op: Any, x: Any, gate: Any, w: Any, bias: Any, y: Any) -> Any:
    return op.add(op.add(op.nn.conv2d(op.multiply(x, gate), w), bias), y)


def _excited_reference(x: Any, gate: Any, w: Any, bias: Any, y: Any) -> Any:
    return references.conv2d(x * gate, w) + bias + y


def _preactivated(op: Any, x: Any, scale: Any, shift: Any, w: Any) -> Any:
    return op.nn.relu(op.nn.conv2d(op.nn.relu(op.add(op.multiply(x, scale), shift)), w))


def _preactivated_reference(x: Any, scale: Any, shift: Any, w: Any) -> Any:
    return np.maximum(references.conv2d(np.maximum(x * scale + shift, 0), w), 0)


def _squared(op: Any, x: Any, w: Any) -> Any:
    return op.nn.conv2d(op.multiply(x, x), w)


def _opened(op: Any, x: Any, gate: Any, w: Any) -> Any:
    return op.nn.conv2d(op.multiply(x, op.sigmoid(gate)), w)


def _read_elsewhere(op: Any, x: Any, gate: Any, w: Any) -> Any:
    scaled = op.multiply(x, gate)
    return op.nn.conv2d(scaled, w), op.max(scaled, axis=[2])


def _returned(op: Any, x: Any, gate: Any, w: Any) -> Any:
    scaled = op.multiply(x, gate)
    return op.nn.conv2d(scaled, w), scaled


def _turned(op: Any, x: Any, w: Any) -> Any:
    return op.nn.conv2d(op.permute_dims(x, [0, 1, 3, 2]), w)


def _as_weight(op: Any, x: Any, w: Any) -> Any:
    return op.nn.conv2d(x, op.multiply(w, w))


def _between(op: Any, x: Any, gate: Any, w: Any) -> Any:
    return op.nn.conv2d(op.add(op.nn.relu(op.nn.conv2d(x, w)), gate), w)


def _long(op: Any, x: Any, w: Any) -> Any:
    for _ in range(_MAX_BEFORE + 1):
        x = op.tanh(x)
    return op.nn.conv2d(x, w)


def _cases() -> tuple[Case, ...]:
    channels = Operand((1, 12, 1, 1), is_constant=True)
    operands = {
        "x": Operand((2, 12, 5, 7)),
        "gate": Operand((2, 12, 1, 1)),
        "scale": channels,
        "shift": channels,
        "w": Operand((20, 12, 1, 1), is_constant=True, spread=0.3),
        "bias": Operand((1, 20, 1, 1), is_constant=True),
        "y": Operand((2, 20, 5, 7)),
    }
    return (
        Case("squeeze and excite", operands, graph=_excited, reference=_excited_reference),
        Case("pre-activated", operands, graph=_preactivated, reference=_preactivated_reference),
    )


def _near_misses() -> tuple[Case, ...]:
    operands = {
        "x": Operand((1, 12, 6, 6)),
        "gate": Operand((1, 12, 1, 1)),
        "w": Operand((8, 12, 1, 1), is_constant=True),
    }
    return (
        Case("the gate is opened in it, too", operands, graph=_opened),
        Case("what is scaled is read elsewhere", operands, graph=_read_elsewhere),
        Case("what is scaled is returned", operands, graph=_returned),
        Case("the image is turned", operands, graph=_turned),
        Case(
            "another convolution can compute it of its result",
            {**operands, "w": Operand((12, 12, 1, 1), is_constant=True)},
            graph=_between,
        ),
        Case("more is computed of a pixel", operands, graph=_long),
        Case(
            "the weight is computed",
            {**operands, "w": Operand((12, 12, 1, 1))},
            graph=_as_weight,
        ),
        Case(
            "the window is larger",
            {**operands, "w": Operand((8, 12, 3, 3), is_constant=True)},
            graph=_squared,
        ),
    )


class ScaledPointwise(Generator):
    """A 1 x 1 convolution with what is computed of each pixel before it, and its epilogue."""

    name = "scaled_pointwise"
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each convolution with ever more of what leads to it, and of what follows."""
        others = frozenset(_epilogues(flow))
        for position in range(len(flow.bindings)):
            if is_whole_pointwise(flow, position):
                for before in _before(flow, position, others):
                    yield from matches(flow, before, position)


def _epilogues(flow: Dataflow) -> Iterator[int]:
    """Yield what a convolution can compute of its own result, before that is stored."""
    for anchor, kind in enumerate(flow.kinds):
        for members in prefixes(flow, anchor) if kind == "conv" else ():
            yield from members


def _before(flow: Dataflow, conv: int, others: Set[int]) -> Iterator[tuple[int, ...]]:
    """Yield the operators that only lead to the image of a convolution, the nearest first."""
    image = flow.value(conv).args[0]
    readers, open_ = {conv: None}, list(flow.deps[conv])
    for position in open_:
        if (
            flow.operators[position] in _BEFORE
            and flow.shapes[position] == operators.shape(image)
            and position not in flow.escaping
            and position not in others
            and readers.keys() >= set(flow.users[position])
            and len(readers) <= _MAX_BEFORE
        ):
            readers[position] = None
            open_ += flow.deps[position]
            yield tuple(readers)[1:]

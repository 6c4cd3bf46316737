"""A depthwise convolution and the 1 x 1 convolution that reads it, in one kernel.

The separable convolutions of MobileNet, EfficientNet and Xception, with what stands
between them (batch norm, activation) and behind them (batch norm, residual). Of what the
first one computes, a few rows of all channels lie in cache, and nothing in memory. The
other way round (expand, then depthwise) rows would be computed twice, which costs more
than memory does: that stays two kernels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

import numpy as np

from tvmfuse.patterns import operators, references
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.chains import chains, is_packed_conv, is_whole_pointwise, matches
from tvmfuse.patterns.dataflow import Dataflow

_PADDED: Mapping[str, Any] = {"padding": (1, 1, 1, 1), "groups": 12}


def _separable(op: Any, x: Any, taps: Any, shift: Any, w: Any, bias: Any, y: Any) -> Any:
    deep = op.clip(op.add(op.nn.conv2d(x, taps, strides=(2, 2), **_PADDED), shift), 0, 6)
    return op.add(op.add(op.nn.conv2d(deep, w), bias), y)


def _separable_reference(x: Any, taps: Any, shift: Any, w: Any, bias: Any, y: Any) -> Any:
    deep = references.conv2d(x, taps, strides=(2, 2), **_PADDED) + shift
    return references.conv2d(np.clip(deep, 0, 6), w) + bias + y


def _plain(op: Any, x: Any, taps: Any, w: Any) -> Any:
    return op.nn.conv2d(op.nn.conv2d(x, taps, **_PADDED), w)


def _plain_reference(x: Any, taps: Any, w: Any) -> Any:
    return references.conv2d(references.conv2d(x, taps, **_PADDED), w)


def _read_elsewhere(op: Any, x: Any, taps: Any, w: Any) -> Any:
    deep = op.nn.relu(op.nn.conv2d(x, taps, **_PADDED))
    return op.nn.conv2d(deep, w), op.exp(deep)


def _strided(op: Any, x: Any, taps: Any, w: Any) -> Any:
    return op.nn.conv2d(op.nn.conv2d(x, taps, **_PADDED), w, strides=(2, 2))


def _moved(op: Any, x: Any, taps: Any, w: Any) -> Any:
    return op.nn.conv2d(op.permute_dims(op.nn.conv2d(x, taps, **_PADDED), (0, 1, 3, 2)), w)


def _cases() -> tuple[Case, ...]:
    channels = Operand((12, 1, 1), is_constant=True)
    operands = {
        "x": Operand((2, 12, 9, 14)),
        "taps": Operand((12, 1, 3, 3), is_constant=True, spread=0.3),
        "shift": channels,
        "w": Operand((20, 12, 1, 1), is_constant=True, spread=0.3),
        "bias": Operand((1, 20, 1, 1), is_constant=True),
        "y": Operand((2, 20, 5, 7)),
    }
    return (
        Case("inverted residual", operands, graph=_separable, reference=_separable_reference),
        Case("nothing between", operands, graph=_plain, reference=_plain_reference),
    )


def _near_misses() -> tuple[Case, ...]:
    operands = {
        "x": Operand((1, 12, 6, 6)),
        "taps": Operand((12, 1, 3, 3), is_constant=True),
        "w": Operand((8, 12, 1, 1), is_constant=True),
    }
    return (
        Case("the depthwise result is read elsewhere", operands, graph=_read_elsewhere),
        Case("the 1 x 1 convolution skips pixels", operands, graph=_strided),
        Case(
            "the 1 x 1 convolution pads",
            operands,
            graph=lambda op, x, taps, w: op.nn.conv2d(
                op.nn.conv2d(x, taps, **_PADDED), w, padding=(0, 1, 0, 0)
            ),
        ),
        Case(
            "the second convolution has groups",
            {**operands, "w": Operand((8, 6, 1, 1), is_constant=True)},
            graph=lambda op, x, taps, w: op.nn.conv2d(
                op.nn.conv2d(x, taps, **_PADDED), w, groups=2
            ),
        ),
        Case(
            "a group has several channels",
            {**operands, "taps": Operand((12, 4, 3, 3), is_constant=True)},
            graph=lambda op, x, taps, w: op.nn.conv2d(op.nn.conv2d(x, taps, groups=3), w),
        ),
        Case(
            "the taps are no constant", {**operands, "taps": Operand((12, 1, 3, 3))}, graph=_plain
        ),
        Case("there is no image", {**operands, "x": Operand((0, 12, 6, 6))}, graph=_plain),
        Case(
            "in float64",
            {name: replace(operand, dtype="float64") for name, operand in operands.items()},
            graph=_plain,
        ),
        Case("the image is turned between them", operands, graph=_moved),
        Case(
            "the second window is larger",
            {**operands, "w": Operand((8, 12, 3, 3), is_constant=True)},
            graph=_plain,
        ),
        Case("the weight is no constant", {**operands, "w": Operand((8, 12, 1, 1))}, graph=_plain),
    )


class DepthwisePointwise(Generator):
    """A depthwise convolution with the 1 x 1 convolution of its result."""

    name = "depthwise_pointwise"
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each pair of convolutions, and with ever more of what follows them."""
        for first in range(len(flow.bindings)):
            if _is_depthwise(flow, first):
                for second, members in chains(flow, first):
                    if is_whole_pointwise(flow, second):
                        yield from matches(flow, members, second)


def _is_depthwise(flow: Dataflow, position: int) -> bool:
    if not is_packed_conv(flow, position):
        return False
    call = flow.value(position)
    image, weight = (operators.shape(arg) or () for arg in call.args)
    return int(call.attrs.groups) == weight[0] == image[1] != 1

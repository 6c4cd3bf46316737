"""A convolution and the pooling of its result, in one kernel.

The stem of ResNet (7 x 7, ReLU, max-pool of 3 x 3), the blocks of LeNet and VGG, and the
mean of the whole image at the end of a network. Only what the pooling leaves is stored;
of the convolution's result, some rows of a few channels lie in cache.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

import numpy as np

from tvmfuse.patterns import references
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.chains import chains, is_image, is_packed_conv, matches
from tvmfuse.patterns.dataflow import Dataflow

_POOLINGS = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d")
_STEM: Mapping[str, Any] = {"strides": (2, 2), "padding": (3, 3, 3, 3)}
_POOL: Mapping[str, Any] = {"pool_size": (3, 3), "strides": (2, 2), "padding": (1, 1, 1, 1)}


def _stem(op: Any, x: Any, w: Any, bias: Any) -> Any:
    return op.nn.max_pool2d(op.nn.relu(op.add(op.nn.conv2d(x, w, **_STEM), bias)), **_POOL)


def _stem_reference(x: Any, w: Any, bias: Any) -> Any:
    y = np.maximum(references.conv2d(x, w, **_STEM) + bias, 0)
    padded = np.pad(y, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=-np.inf)
    rows, columns = ((extent + 1) // 2 for extent in y.shape[2:])
    taps = [
        padded[:, :, i : i + 2 * rows : 2, j : j + 2 * columns : 2][:, :, :rows, :columns]
        for i in range(3)
        for j in range(3)
    ]
    return np.max(taps, axis=0)


def _halved(op: Any, x: Any, w: Any, bias: Any) -> Any:
    y = op.tanh(op.add(op.nn.conv2d(x, w), bias))
    return op.multiply(op.nn.avg_pool2d(y, pool_size=(2, 2), strides=(2, 2)), bias)


def _halved_reference(x: Any, w: Any, bias: Any) -> Any:
    y = np.tanh(references.conv2d(x, w) + bias)
    n, c, h, width = y.shape
    return y.reshape(n, c, h // 2, 2, width // 2, 2).mean(axis=(3, 5)) * bias


def _global(op: Any, x: Any, w: Any, bias: Any, y: Any) -> Any:
    return op.mean(op.nn.relu(op.add(op.add(op.nn.conv2d(x, w), bias), y)), [2, 3], keepdims=True)


def _global_reference(x: Any, w: Any, bias: Any, y: Any) -> Any:
    return np.maximum(references.conv2d(x, w) + bias + y, 0).mean((2, 3), keepdims=True)


def _read_elsewhere(op: Any, x: Any, w: Any) -> Any:
    y = op.nn.relu(op.nn.conv2d(x, w))
    return op.nn.max_pool2d(y, pool_size=(2, 2)), op.exp(y)


def _along_one_axis(op: Any, x: Any, w: Any) -> Any:
    return op.mean(op.nn.conv2d(x, w), [3], keepdims=True)


def _of_channels(op: Any, x: Any, w: Any) -> Any:
    return op.mean(op.nn.conv2d(x, w), [1, 2], keepdims=True)


def _returned(op: Any, x: Any, w: Any) -> Any:
    y = op.nn.relu(op.nn.conv2d(x, w))
    return op.nn.max_pool2d(y, pool_size=(2, 2)), y


def _grouped(op: Any, x: Any, w: Any) -> Any:
    return op.nn.max_pool2d(op.nn.conv2d(x, w, groups=2), pool_size=(2, 2))


def _channels_last(op: Any, x: Any, w: Any) -> Any:
    y = op.nn.conv2d(x, w, data_layout="NHWC", kernel_layout="OIHW")
    return op.nn.max_pool2d(y, pool_size=(2, 2), layout="NHWC")


def _pooled(op: Any, x: Any, w: Any) -> Any:
    return op.nn.max_pool2d(op.nn.conv2d(x, w), pool_size=(2, 2))


def _twice(op: Any, x: Any, w: Any) -> Any:
    y = op.nn.conv2d(x, w)
    return op.add(op.nn.max_pool2d(y, pool_size=(1, 1)), y)


def _cases() -> tuple[Case, ...]:
    bias = Operand((20, 1, 1), is_constant=True)
    small = Operand((20, 6, 3, 3), is_constant=True, spread=0.14)
    return (
        Case(
            "the stem of ResNet",
            {
                "x": Operand((1, 3, 21, 30)),
                "w": Operand((20, 3, 7, 7), is_constant=True, spread=0.1),
                "bias": bias,
            },
            graph=_stem,
            reference=_stem_reference,
        ),
        Case(
            "averages of two by two, scaled",
            {"x": Operand((2, 6, 12, 14)), "w": small, "bias": bias},
            graph=_halved,
            reference=_halved_reference,
        ),
        Case(
            "the mean of the image behind a residual",
            {"x": Operand((2, 6, 9, 9)), "w": small, "bias": bias, "y": Operand((2, 20, 7, 7))},
            graph=_global,
            reference=_global_reference,
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    operands = {"x": Operand((1, 6, 8, 8)), "w": Operand((20, 6, 3, 3), is_constant=True)}
    return (
        Case("the convolution is read elsewhere", operands, graph=_read_elsewhere),
        Case("the mean runs along one axis of the image", operands, graph=_along_one_axis),
        Case("the mean runs over channels", operands, graph=_of_channels),
        Case("the convolution is a result, too", operands, graph=_returned),
        Case(
            "the convolution has groups",
            {**operands, "w": Operand((20, 3, 3, 3), is_constant=True)},
            graph=_grouped,
        ),
        Case("channels stand last", {**operands, "x": Operand((1, 8, 8, 6))}, graph=_channels_last),
        Case(
            "the weight stands otherwise",
            {**operands, "w": Operand((3, 3, 6, 20), is_constant=True)},
            graph=lambda op, x, w: op.nn.max_pool2d(op.nn.conv2d(x, w, kernel_layout="HWIO")),
        ),
        Case("there is no image", {**operands, "x": Operand((0, 6, 8, 8))}, graph=_pooled),
        Case(
            "in float64",
            {name: replace(operand, dtype="float64") for name, operand in operands.items()},
            graph=_pooled,
        ),
        Case(
            "the mean drops the image's axes",
            operands,
            graph=lambda op, x, w: op.mean(op.nn.conv2d(x, w), [2, 3]),
        ),
        Case(
            "the image is added up",
            operands,
            graph=lambda op, x, w: op.sum(op.nn.conv2d(x, w), [2, 3], keepdims=True),
        ),
        Case(
            "adaptive pooling leaves several pixels",
            operands,
            graph=lambda op, x, w: op.nn.adaptive_avg_pool2d(op.nn.conv2d(x, w), (2, 2)),
        ),
        Case("what is pooled is added once more", operands, graph=_twice),
        Case(
            "the weight is no constant",
            {**operands, "w": Operand((20, 6, 3, 3))},
            graph=lambda op, x, w: op.nn.max_pool2d(op.nn.conv2d(x, w)),
        ),
    )


class ConvPool(Generator):
    """A convolution, its epilogue, and max, average or global pooling."""

    name = "conv_pool"
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each convolution with its pooling, and with ever more of what follows."""
        for first in range(len(flow.bindings)):
            if not is_packed_conv(flow, first) or int(flow.value(first).attrs.groups) != 1:
                continue
            for second, members in chains(flow, first):
                if is_image(flow, second) and _is_pooling(flow, second):
                    yield from matches(flow, members, second)


def _is_pooling(flow: Dataflow, position: int) -> bool:
    operator, call = flow.operators[position], flow.value(position)
    if operator in _POOLINGS:
        return True
    if operator == "relax.nn.adaptive_avg_pool2d":
        return (flow.shapes[position] or ())[2:] == (1, 1)
    return operator == "relax.mean" and {int(a) % 4 for a in call.attrs.axis or ()} == {2, 3}

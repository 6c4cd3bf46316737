"""Grouped convolutions agree with NumPy however groups and blocks overlap."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, Case, check, run, scaled_residual_relu
from tvmfuse import testing
from tvmfuse._tvm import te
from tvmfuse.kernels import grouped
from tvmfuse.kernels.grouped import Groups
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.forms import Blocked, GroupedWeight
from tvmfuse.patterns.references import conv2d

SAME = Window((3, 3), padding=(1, 1, 1, 1))


def case(
    name: str, image: tuple[int, int, int, int], filters: int, count: int, window: Window = SAME
) -> Case:
    def emit(machine: Machine, x: Any, weight: Any) -> Any:
        groups = Groups(count, image[1], filters, machine.block)
        return grouped.emit(x, weight, window, machine, groups=groups)

    def reference(x: Any, weight: Any) -> Any:
        attrs = {"strides": window.strides, "padding": window.padding, "groups": count}
        return conv2d(x, weight, dilation=window.dilation, **attrs)

    def forms(machine: Machine) -> tuple[Any, ...]:
        groups = Groups(count, image[1], filters, machine.block)
        return Blocked(machine.block), GroupedWeight(groups)

    weight = (filters, image[1] // count, *window.kernel)
    return Case(name, (image, weight), emit, reference, forms, is_blocked=True)


CASES = [
    case("4 channels a group", (1, 64, 6, 9), 64, 16),
    case("3 channels a group", (2, 15, 5, 4), 15, 5),
    case("more than a block a group", (1, 48, 5, 7), 72, 2),
    case("5 filters a channel", (1, 4, 6, 5), 20, 4),
    case("fewer filters than channels", (1, 36, 4, 4), 6, 3),
    case("strided, dilated", (1, 24, 9, 8), 24, 6, Window((3, 3), (2, 1), (0, 1, 1, 0), (1, 2))),
    case("1 x 1", (1, 24, 3, 5), 36, 3, Window((1, 1))),
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_equals_numpy_with_an_epilogue(case: Case, machine: Machine) -> None:
    check(case, machine, "conv", epilogue=scaled_residual_relu(1))


def test_infinities_and_zeros_stay_in_their_group() -> None:
    machine, groups = MACHINES["8 lanes"], Groups(4, 8, 8, 8)
    x = testing.random_array((1, 8, 4, 4), "float32")
    x[0, 2, 1, 1], x[0, 5, 3, 0] = np.inf, np.nan
    weight = testing.random_array((8, 2, 3, 3), "float32", seed=1)
    weight[2, 0], weight[3, 0] = 0.0, -0.0  # these are present: zero times infinity is NaN
    arrays = [Blocked(8).arrange(x), GroupedWeight(groups).arrange(weight)]
    tensors = [te.placeholder(a.shape, name=f"x{i}") for i, a in enumerate(arrays)]
    result = grouped.emit(*tensors, SAME, machine, groups=groups)
    found = run([*tensors, result], arrays, machine, family="conv")[0, 0].transpose(2, 0, 1)
    with np.errstate(invalid="ignore"):
        expected = conv2d(
            x.astype(np.float64), weight.astype(np.float64), padding=SAME.padding, groups=4
        )[0]
    np.testing.assert_array_equal(np.isnan(found), np.isnan(expected))
    np.testing.assert_array_equal(np.isinf(found), np.isinf(expected))

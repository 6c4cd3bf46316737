"""Winograd's convolution agrees with NumPy for any image, and is taken where it is faster."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, Case, check, run, scaled_residual_relu
from tvmfuse import testing
from tvmfuse._tvm import te
from tvmfuse.kernels import winograd
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.forms import Blocked, WinogradWeight
from tvmfuse.patterns.references import conv2d

SAME = Window((3, 3), padding=(1, 1, 1, 1))
MACHINE = MACHINES["16 lanes"]


def convolution(
    name: str, image: tuple[int, int, int, int], filters: int, window: Window = SAME
) -> Case:
    def emit(machine: Machine, x: Any, weight: Any) -> Any:
        return winograd.emit(x, weight, window, machine)

    def reference(x: Any, weight: Any) -> Any:
        return conv2d(x, weight, padding=window.padding)

    def forms(machine: Machine) -> tuple[Any, ...]:
        return Blocked(machine.block), WinogradWeight(machine.block)

    shapes = (image, (filters, image[1], 3, 3))
    return Case(name, shapes, emit, reference, forms, is_blocked=True)


CASES = [
    convolution("whole tiles", (1, 32, 16, 8), 64),
    convolution("ragged", (1, 16, 13, 7), 32),
    convolution("no padding", (1, 16, 9, 10), 16, Window((3, 3))),
    convolution("one pixel", (1, 16, 1, 1), 16),
    convolution("asymmetric padding", (2, 16, 5, 6), 16, Window((3, 3), padding=(0, 2, 3, 1))),
    convolution("blocks not full", (1, 20, 5, 6), 28),
    convolution("strips and tasks", (2, 64, 40, 56), 96),
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_it_equals_numpy_with_an_epilogue(case: Case, machine: Machine) -> None:
    check(case, machine, "winograd", epilogue=scaled_residual_relu(1))


def test_it_equals_numpy_alone() -> None:
    check(CASES[1], MACHINE, "winograd")


def test_a_nan_reaches_no_more_than_the_tiles_that_read_it() -> None:
    x = testing.random_array((1, 16, 12, 12), "float32")
    weight = testing.random_array((16, 16, 3, 3), "float32", seed=1)
    x[0, 5, 4, 1] = np.nan
    x[0, 7, 11, 11] = -np.inf
    arrays = [Blocked(16).arrange(x), WinogradWeight(16).arrange(weight)]
    tensors = [te.placeholder(a.shape, name=f"x{i}") for i, a in enumerate(arrays)]
    result = winograd.emit(*tensors, SAME, MACHINE)
    found = run([*tensors, result], arrays, MACHINE, family="winograd")[0, 0].transpose(2, 0, 1)
    expected = conv2d(x.astype(np.float64), weight.astype(np.float64), padding=SAME.padding)[0]
    spread = np.zeros((12, 12), bool)
    spread[0:8, 0:4] = True  # tiles of rows 0 to 3 read up to row 4
    spread[8:, 8:] = True
    assert not np.isfinite(found[~np.isfinite(expected)]).any()
    testing.assert_close(found[:, ~spread], expected[:, ~spread])


def test_the_matrices_filter_exactly() -> None:
    signal, taps = np.arange(6.0) ** 2 - 7, np.array([2.0, -3.0, 5.0])
    products = (np.array(winograd.INPUT) @ signal) * (np.array(winograd.FILTER) @ taps)
    expected = [signal[i : i + 3] @ taps for i in range(4)]
    np.testing.assert_allclose(np.array(winograd.OUTPUT) @ products, expected, rtol=1e-12)


@pytest.mark.parametrize(
    ("image", "channels"),
    [
        ((1, 64, 56, 56), 64),
        ((1, 128, 28, 28), 128),
        ((1, 256, 14, 14), 256),
        ((16, 512, 7, 7), 512),  # the weights serve many images
    ],
)
def test_it_is_taken_where_products_cost_most(
    image: tuple[int, int, int, int], channels: int
) -> None:
    assert winograd.is_faster(image, channels, SAME, MACHINE)


@pytest.mark.parametrize(
    "image",
    [
        (1, 512, 7, 7),  # four times the weights come from memory
        (1, 64, 1, 1),
        (0, 64, 56, 56),
    ],
)
def test_it_is_not_taken_where_the_rest_costs_more(image: tuple[int, int, int, int]) -> None:
    assert not winograd.is_faster(image, image[1], SAME, MACHINE)


@pytest.mark.parametrize(
    "window",
    [
        Window((3, 3), (2, 2), (1, 1, 1, 1)),
        Window((3, 3), dilation=(2, 2), padding=(2, 2, 2, 2)),
        Window((5, 5), padding=(2, 2, 2, 2)),
        Window((1, 3), padding=(0, 1, 0, 1)),
    ],
)
def test_it_is_not_taken_for_other_windows(window: Window) -> None:
    assert not winograd.is_faster((1, 64, 56, 56), 64, window, MACHINE)

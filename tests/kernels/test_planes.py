"""Convolutions of planes agree with NumPy for any geometry."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, Case, check, run, scaled_residual_relu
from tests.kernels.test_window import GEOMETRIES
from tvmfuse import testing
from tvmfuse._tvm import te
from tvmfuse.kernels import planes, pointwise
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.forms import PLAIN, FilterPanels
from tvmfuse.patterns.references import conv2d

IMAGE = (2, 5, 11, 13)


def depthwise(name: str, window: Window, image: tuple[int, ...] = IMAGE) -> Case:
    def emit(machine: Machine, x: Any, weight: Any) -> Any:
        return planes.emit(x, weight, window, machine)

    def reference(x: Any, weight: Any) -> Any:
        return convolved(x, weight, window, groups=image[1])

    return Case(name, (image, (image[1], 1, *window.kernel)), emit, reference)


def one_by_one(
    name: str, image: tuple[int, ...], filters: int, strides: tuple[int, int] = (1, 1)
) -> Case:
    window = Window((1, 1), strides)
    pixels = int(np.prod(window.out(*image[2:])))

    def emit(machine: Machine, x: Any, weight: Any) -> Any:
        return pointwise.emit(x, weight, window, machine, filters=filters)

    def forms(machine: Machine) -> tuple[Any, ...]:
        return PLAIN, FilterPanels(pointwise.tile(filters, pixels, machine).rows)

    def reference(x: Any, weight: Any) -> Any:
        return convolved(x, weight, window, groups=1)

    return Case(name, (image, (filters, image[1], 1, 1)), emit, reference, forms)


def convolved(x: Any, weight: Any, window: Window, *, groups: int) -> Any:
    return conv2d(
        x,
        weight,
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        groups=groups,
    )


DEPTHWISE = [
    *(depthwise(name, window) for name, window in GEOMETRIES.items()),
    depthwise("one pixel", GEOMETRIES["3 x 3"], (1, 5, 1, 1)),
    depthwise("a row", Window((1, 3), padding=(0, 1, 0, 1)), (1, 3, 1, 70)),
    depthwise("a wide prime", GEOMETRIES["3 x 3"], (1, 2, 3, 67)),
    depthwise("several planes at once", GEOMETRIES["3 x 3"], (2, 8, 7, 7)),
    depthwise("several planes at once, stride 2", GEOMETRIES["stride 2"], (1, 12, 14, 14)),
    depthwise("several bands", GEOMETRIES["stride 2"], (1, 2, 90, 96)),
]
POINTWISE = [
    one_by_one("whole panels", (1, 9, 8, 16), 24),
    one_by_one("ragged panels", (2, 9, 7, 7), 19),
    one_by_one("one pixel", (1, 9, 1, 1), 5),
    one_by_one("one channel and one filter", (1, 1, 5, 6), 1),
    one_by_one("a stride", (2, 9, 9, 16), 20, (2, 2)),
    one_by_one("strides that differ", (1, 5, 9, 17), 33, (1, 3)),
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", DEPTHWISE, ids=lambda case: case.name)
def test_depthwise_with_an_epilogue_equals_numpy(case: Case, machine: Machine) -> None:
    check(case, machine, "planes", epilogue=scaled_residual_relu(1))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", POINTWISE, ids=lambda case: case.name)
def test_one_by_one_with_an_epilogue_equals_numpy(case: Case, machine: Machine) -> None:
    check(case, machine, "gemm", epilogue=scaled_residual_relu(1))


@pytest.mark.parametrize("case", [DEPTHWISE[0], DEPTHWISE[2]], ids=lambda case: case.name)
def test_depthwise_alone_equals_numpy(case: Case) -> None:
    check(case, MACHINES["8 lanes"], "planes")


@pytest.mark.parametrize(
    ("groups", "lanes"),
    [(5, "8 lanes"), (5, "16 lanes"), (1, "8 lanes")],
    ids=["depthwise", "depthwise, rows of one vector", "one by one"],
)
def test_nan_and_infinity_reach_just_the_windows_that_cover_them(groups: int, lanes: str) -> None:
    cases = {5: DEPTHWISE[0], 1: one_by_one("", IMAGE, 7)}
    case, machine = cases[groups], MACHINES[lanes]
    x, weight = (testing.random_array(s, "float32", seed=i) for i, s in enumerate(case.shapes))
    x[0, 0, 0, 0], x[0, 1, -1, -1], x[1, 2, 4, 0] = np.nan, np.inf, -np.inf
    forms = case.forms(machine) if case.forms else (PLAIN, PLAIN)
    arrays = [form.arrange(a) for form, a in zip(forms, (x, weight), strict=True)]
    tensors = [te.placeholder(a.shape, name=f"x{i}") for i, a in enumerate(arrays)]
    family = "planes" if groups > 1 else "gemm"
    found = run([*tensors, case.emit(machine, *tensors)], arrays, machine, family=family)
    testing.assert_close(found, case.reference(x.astype(np.float64), weight.astype(np.float64)))


@pytest.mark.parametrize("case", POINTWISE[:2], ids=lambda case: case.name)
def test_one_by_one_alone_equals_numpy(case: Case) -> None:
    check(case, MACHINES["8 lanes"], "gemm")

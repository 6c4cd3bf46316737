"""Depthwise convolutions and pooling agree with NumPy for any geometry."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, Case, check, scaled_residual_relu
from tvmfuse.kernels import window as kernels
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.forms import Blocked, DepthwiseWeight
from tvmfuse.patterns.references import conv2d

IMAGE = (2, 20, 11, 13)

GEOMETRIES = {
    "3 x 3": Window((3, 3), padding=(1, 1, 1, 1)),
    "no padding": Window((3, 3)),
    "stride 2": Window((3, 3), (2, 2), (1, 1, 1, 1)),
    "asymmetric padding": Window((3, 3), (2, 2), (0, 1, 2, 0)),
    "dilation": Window((3, 2), (1, 2), (2, 0, 2, 1), (2, 3)),
    "window of one": Window((1, 1), (2, 3)),
    "the whole image": Window((11, 13)),
    "too large to unroll": Window((7, 5), padding=(3, 2, 3, 2)),
}


def depthwise(name: str, window: Window, image: tuple[int, ...] = IMAGE) -> Case:
    def emit(machine: Machine, x: Any, weight: Any) -> Any:
        return kernels.emit_depthwise(x, weight, window, machine)

    def reference(x: Any, weight: Any) -> Any:
        return conv2d(
            x,
            weight,
            strides=window.strides,
            padding=window.padding,
            dilation=window.dilation,
            groups=image[1],
        )

    def forms(machine: Machine) -> tuple[Any, ...]:
        return Blocked(machine.block), DepthwiseWeight(machine.block)

    shapes = (image, (image[1], 1, *window.kernel))
    return Case(name, shapes, emit, reference, forms, is_blocked=True)


def pooling(
    name: str, window: Window, emit: Callable[..., Any], reference: Callable[..., Any]
) -> Case:
    return Case(
        name,
        (IMAGE,),
        lambda machine, x: emit(x, window, machine),
        lambda x: reference(x, window),
        lambda machine: (Blocked(machine.block),),
        is_blocked=True,
    )


def patches(x: Any, window: Window, fill: float) -> Any:
    """Return what each window covers: (n, c, out height, out width, positions)."""
    top, left, bottom, right = window.padding
    padded = np.pad(x, ((0, 0), (0, 0), (top, bottom), (left, right)), constant_values=fill)
    height, width = window.out(*x.shape[2:])
    (sh, sw), (dh, dw), (kh, kw) = window.strides, window.dilation, window.kernel
    taps = [
        padded[:, :, i * dh :: sh, j * dw :: sw][:, :, :height, :width]
        for i in range(kh)
        for j in range(kw)
    ]
    return np.stack(taps, axis=-1)


def maximum(x: Any, window: Window) -> Any:
    return patches(x, window, -np.inf).max(-1)


def mean_of_all(x: Any, window: Window) -> Any:
    return patches(x, window, 0.0).mean(-1)


def mean_of_inside(x: Any, window: Window) -> Any:
    return np.nanmean(patches(x, window, np.nan), -1)


def emit_mean_of_all(x: Any, window: Window, machine: Machine) -> Any:
    return kernels.emit_mean(x, window, machine, count_padding=True)


def emit_mean_of_inside(x: Any, window: Window, machine: Machine) -> Any:
    return kernels.emit_mean(x, window, machine, count_padding=False)


CASES = [
    *(depthwise(f"depthwise, {name}", window) for name, window in GEOMETRIES.items()),
    depthwise("depthwise, one pixel", GEOMETRIES["3 x 3"], (1, 5, 1, 1)),
    *(pooling(f"max, {n}", w, kernels.emit_max, maximum) for n, w in GEOMETRIES.items()),
    *(
        pooling(f"mean of all, {n}", w, emit_mean_of_all, mean_of_all)
        for n, w in GEOMETRIES.items()
    ),
    *(
        pooling(f"mean of inside, {n}", w, emit_mean_of_inside, mean_of_inside)
        for n, w in GEOMETRIES.items()
    ),
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_window_with_an_epilogue_equals_numpy(case: Case, machine: Machine) -> None:
    check(case, machine, "window", epilogue=scaled_residual_relu(1))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES[::9], ids=lambda case: case.name)
def test_window_alone_equals_numpy(case: Case, machine: Machine) -> None:
    check(case, machine, "window")

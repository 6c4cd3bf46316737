"""Two convolutions or windows in one kernel agree with NumPy, and what lies between stays small."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, Case, check, scaled_residual_relu
from tests.kernels.test_window import maximum, mean_of_inside
from tvmfuse._tvm import te
from tvmfuse.kernels import approx, chained, chained_rows, conv, gemm, window
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import Machine, gemm_tile
from tvmfuse.passes.layout.forms import PLAIN, Blocked, ConvWeight, DepthwiseWeight, Panels
from tvmfuse.patterns.references import conv2d

THREE = Window((3, 3), padding=(1, 1, 1, 1))
HALF = Window((3, 3), (2, 2), (1, 1, 1, 1))


def relu(x: Any) -> Any:
    return te.compute(x.shape, lambda *i: approx.relu(x[i]), name="relu")


def depthwise_pointwise(name: str, geometry: Window, image: tuple[int, ...], filters: int) -> Case:
    def emit(machine: Machine, x: Any, taps: Any, weight: Any) -> Any:
        deep = relu(window.emit_depthwise(x, taps, geometry, machine))
        return chained.emit_pointwise(deep, weight, machine)

    def reference(x: Any, taps: Any, weight: Any) -> Any:
        strides, padding = geometry.strides, geometry.padding
        deep = conv2d(x, taps, strides=strides, padding=padding, groups=image[1])
        return conv2d(np.maximum(deep, 0), weight)

    def forms(machine: Machine) -> tuple[Any, ...]:
        b = machine.block
        return Blocked(b), DepthwiseWeight(b), ConvWeight(b, b)

    shapes = (image, (image[1], 1, *geometry.kernel), (filters, image[1], 1, 1))
    return Case(name, shapes, emit, reference, forms, is_blocked=True)


def scaled_pointwise(name: str, image: tuple[int, ...], filters: int) -> Case:
    def emit(machine: Machine, x: Any, scale: Any, weight: Any) -> Any:
        def scaled(*i: Any) -> Any:
            return x[i] * scale[i[0], i[1], 0, 0, i[-1]]

        return chained.emit_pixels(te.compute(x.shape, scaled, name="scaled"), weight, machine)

    def reference(x: Any, scale: Any, weight: Any) -> Any:
        return conv2d(x * scale, weight)

    def forms(machine: Machine) -> tuple[Any, ...]:
        b = machine.block
        return Blocked(b), Blocked(b), ConvWeight(b, b)

    shapes = (image, (*image[:2], 1, 1), (filters, image[1], 1, 1))
    return Case(name, shapes, emit, reference, forms, is_blocked=True)


def conv_pool(name: str, first: Window, pool: Window, image: tuple[int, ...], kind: str) -> Case:
    def emit(machine: Machine, x: Any, weight: Any) -> Any:
        margin = chained.margin(pool, first.out(*image[2:])[0])
        y = relu(conv.emit(x, weight, first, machine, margin=margin))
        if kind == "max":
            return window.emit_max(y, pool, machine, pad=chained.padded)
        return window.emit_mean(y, pool, machine, count_padding=False, pad=chained.padded)

    def reference(x: Any, weight: Any) -> Any:
        y = conv2d(x, weight, strides=first.strides, padding=first.padding)
        pooled = maximum if kind == "max" else mean_of_inside
        return pooled(np.maximum(y, 0), pool)

    def forms(machine: Machine) -> tuple[Any, ...]:
        return Blocked(machine.block), ConvWeight(machine.block, machine.block)

    return Case(
        name, (image, (40, image[1], *first.kernel)), emit, reference, forms, is_blocked=True
    )


def products(name: str, lead: tuple[int, ...], widths: tuple[int, int, int]) -> Case:
    k, hidden, n = widths
    m = int(np.prod(lead))

    def columns(machine: Machine) -> tuple[int, int]:
        return gemm_tile(m, hidden, machine).columns, gemm_tile(m, n, machine).columns

    def emit(machine: Machine, x: Any, first: Any, second: Any) -> Any:
        rows = chained_rows.rows_for(m, hidden, columns(machine), machine)
        y = relu(gemm.emit_packed(x, first, hidden, machine, rows=rows))
        return chained.emit_product(y, second, n, machine, rows=rows)

    def reference(x: Any, first: Any, second: Any) -> Any:
        return np.maximum(x @ first, 0) @ second

    def forms(machine: Machine) -> tuple[Any, ...]:
        return PLAIN, *map(Panels, columns(machine))

    return Case(name, ((*lead, k), (k, hidden), (hidden, n)), emit, reference, forms)


CASES = [
    depthwise_pointwise("depthwise and pointwise", THREE, (2, 20, 12, 14), 24),
    depthwise_pointwise("of stride 2", HALF, (1, 40, 15, 33), 70),
    depthwise_pointwise("of a prime width", THREE, (1, 8, 3, 31), 8),
    scaled_pointwise("what is scaled and pointwise", (2, 20, 12, 14), 24),
    scaled_pointwise("scaled, of a prime width", (1, 40, 5, 31), 70),
    conv_pool(
        "convolution and max-pool",
        Window((3, 3), (2, 2), (1, 1, 1, 1)),
        HALF,
        (1, 3, 22, 26),
        "max",
    ),
    conv_pool(
        "pooling of two by two", Window((5, 5)), Window((2, 2), (2, 2)), (2, 6, 14, 14), "max"
    ),
    conv_pool(
        "average of uneven padding",
        THREE,
        Window((3, 2), (1, 2), (0, 1, 2, 0)),
        (1, 20, 9, 11),
        "mean",
    ),
    conv_pool("the mean of the image", Window((1, 1)), Window((7, 7)), (2, 20, 7, 7), "mean"),
]

PRODUCTS = [
    products("whole tiles", (64,), (24, 96, 48)),
    products("ragged rows and columns", (23,), (13, 70, 10)),
    products("rows of several batches", (3, 37), (16, 130, 33)),
    products("one row", (1,), (16, 48, 16)),
    products("a hidden width beyond the cache", (40,), (16, 6000, 16)),
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_chain_agrees_with_numpy(case, machine):
    check(case, machine, "chained", epilogue=scaled_residual_relu(1))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
@pytest.mark.parametrize("case", PRODUCTS, ids=lambda case: case.name)
def test_two_products_agree_with_numpy(case, machine):
    check(case, machine, "chained", epilogue=scaled_residual_relu(-1))

"""Convolutions of 8-bit blocks are exact for any geometry, by every instruction there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, host
from tests.kernels.test_gemm_integer import NEEDED, machine_with, values
from tvmfuse._tvm import te, tvm
from tvmfuse.kernels import families, integer_conv
from tvmfuse.kernels.gemm import integer
from tvmfuse.kernels.grouped import Groups
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.forms import Blocked, DepthwiseWeight, Trailing
from tvmfuse.passes.layout.integer_forms import ChannelSums, IntegerConvWeight
from tvmfuse.patterns.references import conv2d

AROUND = (1, 1, 1, 1)
PLAIN_RANK = 4
LIMITS = {"uint8": (0, 255), "int8": (-128, 127)}
# image, filters, geometry
GEOMETRIES = {
    "3 x 3": ((1, 32, 9, 7), 40, Window((3, 3), padding=AROUND)),
    "stride 2, batch 2": ((2, 20, 8, 11), 16, Window((3, 3), (2, 2), AROUND)),
    "1 x 1": ((1, 48, 7, 7), 64, Window((1, 1))),
    "1 x 1, stride 2": ((1, 16, 7, 9), 16, Window((1, 1), (2, 2))),
    "dilated": ((1, 16, 9, 9), 8, Window((3, 3), padding=(2, 2, 2, 2), dilation=(2, 2))),
    "first layer": ((1, 3, 13, 12), 32, Window((7, 7), (2, 2), (3, 3, 3, 3))),
}


@pytest.mark.parametrize("x_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("dot", NEEDED)
@pytest.mark.parametrize("geometry", GEOMETRIES.values(), ids=GEOMETRIES)
def test_convolution_is_exact(
    geometry: tuple[tuple[int, int, int, int], int, Window], dot: str, x_dtype: str
) -> None:
    image, filters, window = geometry
    machine = machine_with(dot)
    x = values(*LIMITS[x_dtype], image, x_dtype)
    weight = values(-128, 127, (filters, image[1], *window.kernel), "int8")
    found = run(x, weight, window, machine)
    exact = exactly(x, weight, window)
    np.testing.assert_array_equal(found[:, :filters], exact)


GROUPED = {
    "4 channels a group": ((1, 32, 6, 9), 32, 8, Window((3, 3), padding=AROUND)),
    "whole blocks a group": ((2, 64, 5, 7), 96, 2, Window((3, 3), (2, 2), AROUND)),
    "more than a block a group": ((1, 48, 5, 7), 72, 2, Window((1, 1))),
    "5 filters a channel": ((1, 4, 6, 5), 20, 4, Window((3, 3), padding=AROUND)),
    "rows": ((2, 24, 1, 19), 36, 3, Window((1, 5), (1, 2), (0, 2, 0, 2), (1, 2))),
}


@pytest.mark.parametrize("dot", NEEDED)
@pytest.mark.parametrize("geometry", GROUPED.values(), ids=GROUPED)
def test_grouped_convolution_is_exact(
    geometry: tuple[tuple[int, int, int, int], int, int, Window], dot: str
) -> None:
    image, filters, count, window = geometry
    x = values(*LIMITS["int8"], image, "int8")
    weight = values(-128, 127, (filters, image[1] // count, *window.kernel), "int8")
    found = run(x, weight, window, machine_with(dot), count)
    exact = exactly(x, weight, window, count)
    np.testing.assert_array_equal(found[:, :filters], exact)


DEPTHWISE = {
    "3 x 3": ((1, 40, 9, 7), Window((3, 3), padding=AROUND)),
    "stride 2, batch 2": ((2, 20, 8, 11), Window((3, 3), (2, 2), AROUND)),
    "dilated, not padded": ((1, 16, 9, 9), Window((3, 2), dilation=(2, 3))),
    "rows": ((1, 24, 1, 33), Window((1, 7), padding=(0, 3, 0, 3))),
    "more than float32 holds": ((1, 8, 30, 31), Window((29, 30), padding=AROUND)),
}


@pytest.mark.parametrize(
    ("x_dtype", "weight_dtype", "least"),
    [("int8", "int8", -128), ("uint8", "int8", -128), ("uint8", "int16", -255)],
)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("geometry", DEPTHWISE.values(), ids=DEPTHWISE)
def test_depthwise_convolution_is_exact(
    geometry: tuple[tuple[int, int, int, int], Window],
    machine: Machine,
    x_dtype: str,
    weight_dtype: str,
    least: int,
) -> None:
    image, window = geometry
    channels, block = image[1], machine.block
    x, weight = largest(image, window, x_dtype, weight_dtype, least)
    sums = integer_conv.depthwise_dtype(weight_dtype, window)
    arrays = [Blocked(block).arrange(x), DepthwiseWeight(block, sums).arrange(weight)]
    tensors = [te.placeholder(a.shape, str(a.dtype), name=f"x{a.ndim}") for a in arrays]
    result = integer_conv.emit_depthwise(*tensors, window, machine)
    found = executed(tensors, result, arrays, machine, "window")
    exact = exactly(x, weight, window, channels)
    np.testing.assert_array_equal(found[:, :channels], exact)


PLANES = {
    **DEPTHWISE,
    "rows that vectors divide": ((1, 2, 5, 32), Window((3, 3), padding=AROUND)),
    "small planes": ((2, 8, 7, 7), Window((3, 3), padding=AROUND)),
    "small planes, stride 2": ((1, 12, 14, 14), Window((3, 3), (2, 2), AROUND)),
    "several bands": ((1, 2, 90, 96), Window((3, 3), (2, 2), (1, 0, 0, 1))),
}


@pytest.mark.parametrize("fill", [0, 100])
@pytest.mark.parametrize(
    ("x_dtype", "weight_dtype", "least"),
    [("int8", "int8", -128), ("uint8", "int8", -128), ("uint8", "int16", -255)],
)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("geometry", PLANES.values(), ids=PLANES)
def test_depthwise_convolution_of_planes_is_exact(
    geometry: tuple[tuple[int, int, int, int], Window],
    machine: Machine,
    x_dtype: str,
    weight_dtype: str,
    least: int,
    fill: int,
) -> None:
    image, window = geometry
    x, weight = largest(image, window, x_dtype, weight_dtype, least)
    arrays = [x, weight.astype(integer_conv.depthwise_dtype(weight_dtype, window))]
    tensors = [te.placeholder(a.shape, str(a.dtype), name=str(a.dtype)) for a in arrays]
    result = integer_conv.emit_planes(*tensors, window, machine, fill=fill)
    found = executed(tensors, result, arrays, machine, "planes")
    top, left, bottom, right = window.padding
    around = ((0, 0), (0, 0), (top, bottom), (left, right))
    padded = np.pad(x, around, constant_values=fill)
    exact = exactly(padded, weight, replace(window, padding=(0, 0, 0, 0)), image[1])
    np.testing.assert_array_equal(found, exact)


def largest(image: Any, window: Window, x_dtype: str, weight_dtype: str, least: int) -> Any:
    """Return operands as large as can be: sums beyond 2^24 are too large for a float."""
    x = np.full(image, LIMITS[x_dtype][x_dtype == "uint8"], x_dtype)
    weight = np.full((image[1], 1, *window.kernel), least, weight_dtype)
    x[..., 1::3], weight[:, :, 0, 1] = 3, 7
    return x, weight


def exactly(x: Any, weight: Any, window: Window, groups: int = 1) -> Any:
    return conv2d(
        x.astype("f8"),
        weight.astype("f8"),
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
        groups=groups,
    )


def run(x: Any, weight: Any, window: Window, machine: Machine, count: int = 1) -> Any:
    chosen = integer.plan(str(x.dtype), str(weight.dtype), machine)
    block = machine.block
    groups = Groups(count, x.shape[1], len(weight), block) if count > 1 else None
    is_first = groups is None and x.shape[1] * 2 < block
    forms = [
        (Trailing() if is_first else Blocked(block), x),
        (IntegerConvWeight(1 if is_first else block, block, chosen, groups), weight),
        *([(ChannelSums(block), weight)] if chosen.shift else []),
    ]
    arrays = [form.arrange(array) for form, array in forms]
    assert [a.shape for a in arrays] == [form.shape(array.shape) for form, array in forms]
    tensors = [te.placeholder(a.shape, str(a.dtype), name=f"x{i}") for i, a in enumerate(arrays)]
    sums = tensors[2] if chosen.shift else None
    result = integer_conv.emit(*tensors[:2], sums, window, chosen, machine, groups=groups)
    return executed(tensors, result, arrays, machine, "conv")


def executed(tensors: Any, result: Any, arrays: Any, machine: Machine, family: str) -> Any:
    """Run a kernel, and return what it computes as plain channels."""
    scheduled = families.schedule(te.create_prim_func([*tensors, result]), machine)
    assert (scheduled.family, scheduled.note) == (family, "")
    function = scheduled.function.with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": function}), host())
    out = tvm.runtime.tensor(np.zeros([int(d) for d in result.shape], "int32"))
    library["main"](*(tvm.runtime.tensor(array) for array in arrays), out)
    if len(out.shape) == PLAIN_RANK:
        return out.numpy()
    n, _, height, width, _ = out.shape
    return out.numpy().transpose(0, 1, 4, 2, 3).reshape(n, -1, height, width)

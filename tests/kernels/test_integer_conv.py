"""Convolutions of 8-bit blocks are exact for any geometry, by every instruction there is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import host
from tests.kernels.test_gemm_integer import NEEDED, machine_with, values
from tvmfuse._tvm import te, tvm
from tvmfuse.kernels import families, integer_conv
from tvmfuse.kernels.conv import Window
from tvmfuse.kernels.gemm import integer
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.forms import Blocked, Trailing
from tvmfuse.passes.layout.integer_forms import ChannelSums, IntegerConvWeight
from tvmfuse.patterns.references import conv2d

AROUND = (1, 1, 1, 1)
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
    low, high = (0, 255) if x_dtype == "uint8" else (-128, 127)
    x = values(low, high, image, x_dtype)
    weight = values(-128, 127, (filters, image[1], *window.kernel), "int8")
    found = run(x, weight, window, machine)
    exact = conv2d(
        x.astype("f8"),
        weight.astype("f8"),
        strides=window.strides,
        padding=window.padding,
        dilation=window.dilation,
    )
    np.testing.assert_array_equal(found[:, :filters], exact)


def run(x: Any, weight: Any, window: Window, machine: Machine) -> Any:
    chosen = integer.plan(str(x.dtype), str(weight.dtype), machine)
    block = machine.block
    is_first = x.shape[1] * 2 < block
    forms = [
        (Trailing() if is_first else Blocked(block), x),
        (IntegerConvWeight(1 if is_first else block, block, chosen), weight),
        *([(ChannelSums(block), weight)] if chosen.shift else []),
    ]
    arrays = [form.arrange(array) for form, array in forms]
    assert [a.shape for a in arrays] == [form.shape(array.shape) for form, array in forms]
    tensors = [te.placeholder(a.shape, str(a.dtype), name=f"x{i}") for i, a in enumerate(arrays)]
    sums = tensors[2] if chosen.shift else None
    result = integer_conv.emit(*tensors[:2], sums, window, chosen, machine)
    scheduled = families.schedule(te.create_prim_func([*tensors, result]), machine)
    assert (scheduled.family, scheduled.note) == ("conv", "")
    function = scheduled.function.with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": function}), host())
    out = tvm.runtime.tensor(np.zeros([int(d) for d in result.shape], "int32"))
    library["main"](*(tvm.runtime.tensor(array) for array in arrays), out)
    n, blocks, height, width, _ = out.shape
    return out.numpy().transpose(0, 1, 4, 2, 3).reshape(n, blocks * block, height, width)

"""Half-precision convolutions are stored as they are, and summed in float32."""

from __future__ import annotations

from typing import Any

import ml_dtypes  # noqa: F401 - NumPy learns bfloat16 from it
import numpy as np
import pytest

from tests import graphs
from tests.kernels.contract import MACHINES
from tvmfuse import testing
from tvmfuse._tvm import relax
from tvmfuse.kernels.tiling import Machine
from tvmfuse.patterns.references import conv2d

HALVES = ("float16", "bfloat16")
# image, filters, attributes of the convolution, family
CASES = {
    "3 x 3, stride 2": ((2, 20, 9, 7), (24, 20, 3, 3), {"padding": 1, "strides": 2}, "conv"),
    "1 x 1": ((1, 32, 5, 7), (40, 32, 1, 1), {}, "conv"),
    "first layer": ((1, 3, 11, 9), (16, 3, 5, 5), {"padding": 2}, "conv"),
    "4 channels a group": ((1, 32, 6, 5), (32, 4, 3, 3), {"padding": 1, "groups": 8}, "conv"),
    "depthwise": ((1, 24, 9, 7), (24, 1, 3, 3), {"padding": 1, "groups": 24}, "window"),
}


def model(x: Any, weight: Any, attributes: Any) -> Any:
    def graph(image: Any) -> Any:
        return relax.op.nn.relu(relax.op.nn.conv2d(image, constant(weight), **attributes))

    return graphs.module(graph, x)


def constant(array: Any) -> Any:
    return relax.const(array, array.dtype.name)


def exactly(x: Any, weight: Any, attributes: Any) -> Any:
    padding, stride = attributes.get("padding", 0), attributes.get("strides", 1)
    more = {"padding": (padding,) * 4, "strides": (stride, stride)}
    wide = (x.astype("f8"), weight.astype("f8"))
    return np.maximum(conv2d(*wide, groups=attributes.get("groups", 1), **more), 0)


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_it_equals_numpy(case: Any, machine: Machine, dtype: str) -> None:
    image, filters, attributes, family = case
    x, weight = (testing.random_array(s, dtype, seed=i) for i, s in enumerate((image, filters)))
    compiled = graphs.compiled(model(x, weight, attributes), target=graphs.on(machine))
    assert [k.family for k in compiled.kernels].count(family) == 1
    (found,) = graphs.run(compiled, x)
    assert str(found.dtype) == dtype
    testing.assert_close(found, exactly(x, weight, attributes))


@pytest.mark.parametrize("name", ["3 x 3, stride 2", "1 x 1", "depthwise"])
def test_a_sum_that_leaves_the_range_on_its_way_is_right(name: str) -> None:
    """300 x 300 is beyond float16 already; what is left of the sums is not."""
    image, filters, attributes, _ = CASES[name]
    x, weight = np.full(image, 300, "float16"), np.full(filters, 300, "float16")
    flat = weight.reshape(len(weight), -1)
    flat[:, 1::2] = -300
    if flat.shape[1] % 2:
        flat[:, -1] = 1
    compiled = graphs.compiled(model(x, weight, attributes))
    (found,) = graphs.run(compiled, x)
    exact = exactly(x, weight, attributes)
    fits = exact < 60000
    assert fits.any()
    testing.assert_close(found[fits], exact[fits])

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
    "1 x 1": ((1, 32, 5, 7), (40, 32, 1, 1), {}, "gemm"),
    "1 x 1, a stride": ((1, 9, 9, 16), (20, 9, 1, 1), {"strides": 2}, "gemm"),
    "first layer": ((1, 3, 11, 9), (16, 3, 5, 5), {"padding": 2}, "conv"),
    "4 channels a group": ((1, 32, 6, 5), (32, 4, 3, 3), {"padding": 1, "groups": 8}, "conv"),
    "depthwise": ((1, 24, 9, 7), (24, 1, 3, 3), {"padding": 1, "groups": 24}, "planes"),
    "depthwise, a stride": (
        (2, 8, 14, 14),
        (8, 1, 3, 3),
        {"padding": 1, "strides": 2, "groups": 8},
        "planes",
    ),
    "depthwise, wide rows": ((1, 3, 5, 64), (3, 1, 3, 3), {"padding": 1, "groups": 3}, "planes"),
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


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
def test_depthwise_and_1_x_1_between_others_stay_in_blocks(machine: Machine, dtype: str) -> None:
    shapes = ((1, 8, 9, 7), (24, 8, 3, 3), (24, 1, 3, 3), (40, 24, 1, 1))
    x, first, second, third = (
        testing.random_array(s, dtype, seed=i) / np.asarray(4, dtype) for i, s in enumerate(shapes)
    )

    def graph(image: Any) -> Any:
        wide = relax.op.nn.conv2d(image, constant(first), padding=1)
        each = relax.op.nn.conv2d(wide, constant(second), padding=1, groups=24)
        return relax.op.nn.conv2d(each, constant(third))

    compiled = graphs.compiled(graphs.module(graph, x), target=graphs.on(machine))
    families = [k.family for k in compiled.kernels]
    assert (families.count("window"), families.count("conv")) == (1, 2)
    (found,) = graphs.run(compiled, x)
    exact = x.astype("f8")
    for weight, groups in ((first, 1), (second, 24), (third, 1)):
        padding = (weight.shape[2] // 2,) * 4
        sums = conv2d(exact, weight.astype("f8"), groups=groups, padding=padding)
        exact = sums.astype(dtype).astype("f8")
    testing.assert_close(found, exact)


@pytest.mark.parametrize("dtype", HALVES)
def test_nan_and_infinity_reach_just_the_windows_that_cover_them(dtype: str) -> None:
    image, filters, attributes, _ = CASES["depthwise"]
    x, weight = (testing.random_array(s, dtype, seed=i) for i, s in enumerate((image, filters)))
    x[0, 0, 0, 0], x[0, 1, -1, -1], x[0, 2, 4, 0] = np.nan, np.inf, -np.inf
    (found,) = graphs.run(graphs.compiled(model(x, weight, attributes)), x)
    with np.errstate(invalid="ignore"):
        testing.assert_close(found, exactly(x, weight, attributes))


@pytest.mark.parametrize("name", ["1 x 1", "depthwise"])
def test_a_bias_is_added_in_the_kernel(name: str) -> None:
    image, filters, attributes, family = CASES[name]
    shapes = (image, filters, (1, filters[0], 1, 1))
    x, weight, bias = (testing.random_array(s, "float16", seed=i) for i, s in enumerate(shapes))

    def graph(image: Any) -> Any:
        sums = relax.op.nn.conv2d(image, constant(weight), **attributes)
        return relax.op.nn.relu(relax.op.add(sums, constant(bias)))

    compiled = graphs.compiled(graphs.module(graph, x))
    assert [kernel.family for kernel in compiled.kernels] == [family]
    (found,) = graphs.run(compiled, x)
    padding, groups = (attributes.get("padding", 0),) * 4, attributes.get("groups", 1)
    sums = conv2d(x.astype("f8"), weight.astype("f8"), padding=padding, groups=groups)
    testing.assert_close(found, np.maximum(sums + bias, 0))


def test_a_weight_known_only_at_run_time() -> None:
    x, weight = (
        testing.random_array(s, "float16", seed=i) for i, s in enumerate(CASES["depthwise"][:2])
    )

    def graph(image: Any, taps: Any) -> Any:
        return relax.op.nn.conv2d(image, taps, padding=1, groups=24)

    compiled = graphs.compiled(graphs.module(graph, x, weight))
    assert [kernel.family for kernel in compiled.kernels] == ["planes"]
    (found,) = graphs.run(compiled, x, weight)
    sums = conv2d(x.astype("f8"), weight.astype("f8"), groups=24, padding=(1, 1, 1, 1))
    testing.assert_close(found, sums)


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

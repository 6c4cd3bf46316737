"""Quantisation rounds ties to even and saturates, as ONNX defines it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import graphs
from tvmfuse._tvm import relax

EDGES = [0.5, 1.5, 2.5, -0.5, -1.5, 1e9, -1e9, np.inf, -np.inf, 0.0, 127.5, 254.5]


def quantised(x: Any, scale: Any, zero_point: Any, axis: int) -> Any:
    dtype = str(zero_point.dtype)

    def graph(x: Any) -> Any:
        parameters = (relax.const(scale, "float32"), relax.const(zero_point, dtype))
        return relax.op.quantize(x, *parameters, axis=axis, out_dtype=dtype)

    compiled = graphs.compiled(graphs.module(graph, x))
    assert [kernel.family for kernel in compiled.kernels] == ["elementwise"]
    (found,) = graphs.run(compiled, x)
    return found


def expected(x: Any, scale: Any, zero_point: Any) -> Any:
    limits = np.iinfo(zero_point.dtype)
    whole = np.rint(x / scale) + zero_point.astype("float32")
    return np.clip(whole, limits.min, limits.max).astype(zero_point.dtype)


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
def test_one_scale(dtype: str) -> None:
    x = np.concatenate([EDGES, np.random.default_rng(0).normal(0, 200, 100)]).astype("float32")
    scale, zero_point = np.float32(1.0), np.array(3, dtype)
    found = quantised(x, scale, zero_point, -1)
    np.testing.assert_array_equal(found, expected(x, scale, zero_point))


def test_a_scale_for_each_channel() -> None:
    x = np.random.default_rng(0).normal(0, 9, (2, 5, 33)).astype("float32")
    scale = np.linspace(0.03, 0.2, 5).astype("float32")
    zero_point = np.arange(5).astype("uint8")
    found = quantised(x, scale, zero_point, 1)
    np.testing.assert_array_equal(found, expected(x, scale[:, None], zero_point[:, None]))


@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("scale", [1e-30, 0.0078125, 0.017, 1 / 3, 0.9999999, 6.1e4, 1e30])
def test_next_to_each_tie_it_is_as_exact_as_a_division(scale: float, dtype: str) -> None:
    x, zero_point = next_to_ties(scale), np.array(7, dtype)
    found = quantised(x, np.float32(scale), zero_point, -1)
    np.testing.assert_array_equal(found, expected(x, np.float32(scale), zero_point))


@pytest.mark.parametrize("scale", [3e-38, 2e38])
def test_scales_at_the_ends_of_float32_round_to_a_neighbour_at_worst(scale: float) -> None:
    x, zero_point = next_to_ties(scale), np.array(7, "int8")
    found = quantised(x, np.float32(scale), zero_point, -1)
    exact = expected(x, np.float32(scale), zero_point)
    np.testing.assert_allclose(found.astype(int), exact.astype(int), rtol=0, atol=1)


def next_to_ties(scale: float) -> Any:
    """Return what lies between two steps, and the three floats before and behind it."""
    limit = float(np.finfo("float32").max)
    ties = np.clip((np.arange(-300, 300) + 0.5) * scale, -limit, limit).astype("float32")
    near = [ties]
    for end in (limit, -limit):
        step = ties
        for _ in range(3):
            step = np.nextafter(step, np.float32(end))
            near.append(step)
    return np.concatenate(near)


def test_nan_becomes_the_least_value() -> None:
    x = np.array([np.nan, 1.0] * 20, "float32")
    found = quantised(x, np.float32(1.0), np.array(0, "int8"), -1)
    np.testing.assert_array_equal(found, [-128, 1] * 20)

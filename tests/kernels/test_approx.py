"""The vector functions keep their stated errors, and IEEE's special values."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import pytest
from scipy import special

from tests.kernels.contract import host
from tvmfuse._tvm import te, tirx, tvm
from tvmfuse.kernels import approx, families
from tvmfuse.kernels.tiling import Machine

Array = np.ndarray[Any, Any]

_COUNT = 1 << 19

FUNCTIONS: dict[str, tuple[Callable[[Any], Any], Callable[[Array], Array]]] = {
    "exp": (approx.exp, np.exp),
    "tanh": (approx.tanh, np.tanh),
    "erf": (approx.erf, special.erf),
    "sigmoid": (approx.sigmoid, special.expit),
}
# What the module's table states.
ERRORS = {"exp": 2e-7, "tanh": 4e-7, "erf": 5e-7, "sigmoid": 3e-7}

TINY = float(np.finfo("float32").smallest_subnormal)
SPECIAL = np.array(
    [np.nan, np.inf, -np.inf, 0.0, -0.0, TINY, -TINY, 1e-38, -1e-38, 3e38, -3e38, 88.0, -104.5],
    "float32",
)


@cache
def kernel(name: str) -> Any:
    """Compile a function over a vector, by the schedule of elementwise kernels."""
    x = te.placeholder((_COUNT,), name="x")
    y = te.compute(x.shape, lambda i: FUNCTIONS[name][0](x[i]), name="y")
    return compiled([x, y])


def compiled(tensors: list[Any]) -> Any:
    scheduled = families.schedule(te.create_prim_func(tensors), Machine(8, 16, 1, 1 << 19))
    assert scheduled.family == "elementwise"
    function = scheduled.function.with_attr("global_symbol", "main")
    return tvm.compile(tvm.IRModule({"main": function}), target=host())["main"]


def evaluate(name: str, values: Array) -> Array:
    x = np.resize(values, _COUNT).astype("float32")
    out = tvm.runtime.tensor(np.empty_like(x))
    kernel(name)(tvm.runtime.tensor(x), out)
    return out.numpy()[: values.size]


def both_signs(low: float, high: float) -> Array:
    """Return points spaced evenly up to ``high``, and by magnitude from ``low``."""
    quarter = _COUNT // 4
    half = np.r_[np.linspace(0, high, quarter), np.geomspace(low, high, quarter)]
    return np.r_[half, -half].astype("float32")


@pytest.mark.parametrize(
    ("name", "points"),
    [
        ("exp", both_signs(1e-30, 87.3)),
        ("tanh", both_signs(1e-30, 20.0)),
        ("erf", both_signs(1e-30, 10.0)),
        ("sigmoid", both_signs(1e-30, 87.3)),
    ],
)
def test_relative_error_is_below_the_stated_one(name: str, points: Array) -> None:
    exact = FUNCTIONS[name][1](points.astype(np.float64))
    found = evaluate(name, points).astype(np.float64)
    is_normal = np.abs(exact) >= np.finfo("float32").smallest_normal
    error = np.abs(found / np.where(is_normal, exact, 1) - 1)[is_normal].max()
    assert error < ERRORS[name]


@pytest.mark.parametrize("name", FUNCTIONS)
def test_special_values_are_those_of_the_function(name: str) -> None:
    with np.errstate(all="ignore"):
        exact = FUNCTIONS[name][1](SPECIAL.astype(np.float64)).astype("float32")
    found = evaluate(name, SPECIAL)
    np.testing.assert_allclose(found, exact, rtol=ERRORS[name], atol=2 * TINY)
    np.testing.assert_array_equal(np.isinf(found), np.isinf(exact))


def test_exp_falls_through_the_subnormal_numbers_to_zero() -> None:
    points = np.linspace(-110, -86, 10_001).astype("float32")
    exact = np.exp(points.astype(np.float64))
    # One unit, and a second one for rounding twice.
    np.testing.assert_allclose(evaluate("exp", points), exact, rtol=2e-7, atol=2 * TINY)


def test_exp_overflows_where_float32_ends() -> None:
    points = np.linspace(88, 89.5, 1001).astype("float32")
    exact = np.exp(points.astype(np.float64))
    is_finite = exact <= np.finfo("float32").max
    found = evaluate("exp", points)
    np.testing.assert_array_equal(np.isfinite(found), is_finite)


@pytest.mark.parametrize("name", ["tanh", "erf"])
def test_odd_functions_are_odd_and_within_one(name: str) -> None:
    points = both_signs(1e-30, 100.0)
    found = evaluate(name, points)
    np.testing.assert_array_equal(found, -evaluate(name, -points))
    assert np.abs(found).max() <= 1 + np.finfo("float32").eps


CUTS = {
    "relu": (approx.relu, lambda x: np.maximum(x, 0)),
    "clip": (lambda x: approx.clip(x, -1.5, 2.0), lambda x: np.clip(x, -1.5, 2.0)),
}


@pytest.mark.parametrize("name", CUTS)
def test_cuts_keep_nan(name: str) -> None:
    emit, reference = CUTS[name]
    x = te.placeholder((SPECIAL.size,), name="x")
    function = compiled([x, te.compute(x.shape, lambda i: emit(x[i]), name="y")])
    out = tvm.runtime.tensor(np.empty_like(SPECIAL))
    function(tvm.runtime.tensor(SPECIAL), out)
    np.testing.assert_array_equal(out.numpy(), reference(SPECIAL))


@pytest.mark.parametrize(
    ("emit", "reference"),
    [(approx.maximum, np.maximum), (approx.minimum, np.minimum)],
    ids=["maximum", "minimum"],
)
def test_larger_and_smaller_keep_nan(emit: Any, reference: Any) -> None:
    a, b = (x.ravel() for x in np.meshgrid(SPECIAL, SPECIAL))
    tensors = [te.placeholder(a.shape, name=name) for name in "ab"]
    y = te.compute(a.shape, lambda i: emit(*(t[i] for t in tensors)), name="y")
    function = compiled([*tensors, y])
    out = tvm.runtime.tensor(np.empty_like(a))
    function(tvm.runtime.tensor(a), tvm.runtime.tensor(b), out)
    np.testing.assert_array_equal(out.numpy(), reference(a, b))


def test_an_argument_is_computed_once() -> None:
    x = te.placeholder((64,), name="x")
    y = te.compute(x.shape, lambda i: approx.sigmoid(tirx.sqrt(x[i])), name="y")
    assert str(te.create_prim_func([x, y])).count("sqrt") == 1

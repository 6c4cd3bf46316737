"""Numbers of half precision are rounded as NumPy rounds them, and converted both ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import ml_dtypes  # noqa: F401 - NumPy learns bfloat16 from it
import numpy as np
import pytest
from scipy.special import ndtr

from tests import graphs
from tvmfuse import testing
from tvmfuse._tvm import relax

op = relax.op
HALVES = ("float16", "bfloat16")
ARITHMETIC = {"add": np.add, "subtract": np.subtract, "multiply": np.multiply, "divide": np.divide}


def run(graph: Callable[..., Any], *arrays: Any) -> Any:
    (found,) = graphs.run(graphs.module(graph, *arrays), *arrays)
    return found


@pytest.mark.parametrize("dtype", HALVES)
@pytest.mark.parametrize("name", ARITHMETIC)
def test_arithmetic_rounds_once(name: str, dtype: str) -> None:
    x, y = (testing.random_array((5, 33), dtype, seed=i) for i in range(2))
    found = run(getattr(op, name), x, y)
    wide = ARITHMETIC[name](x.astype("float32"), y.astype("float32"))
    np.testing.assert_array_equal(found.view("uint16"), wide.astype(dtype).view("uint16"))


@pytest.mark.parametrize("dtype", HALVES)
def test_conversions_keep_special_values(dtype: str) -> None:
    values = np.array([0.0, -0.0, 1.0, np.inf, -np.inf, np.nan, 1e30, 1.0 + 2**-9, 3e-6], "float32")
    narrow = run(lambda x: op.astype(x, dtype), values)
    with np.errstate(over="ignore"):
        expected = values.astype(dtype)
    np.testing.assert_array_equal(narrow.astype("float32"), expected.astype("float32"))
    np.testing.assert_array_equal(
        run(lambda x: op.astype(x, "float32"), narrow), expected.astype("float32")
    )


@pytest.mark.parametrize("dtype", HALVES)
def test_a_chain_of_functions_is_right(dtype: str) -> None:
    x = testing.random_array((3, 40), dtype)

    def chain(x: Any) -> Any:
        return op.multiply(op.add(op.nn.gelu(x), x), op.tanh(x))

    wide = x.astype("f8")
    testing.assert_close(run(chain, x), (wide * ndtr(wide) + wide) * np.tanh(wide))

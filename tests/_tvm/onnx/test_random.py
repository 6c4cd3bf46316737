"""Random numbers are drawn when importing: the same in every run, of the stated distribution."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import run
from tvmfuse.frontend import import_model

N = 20_000


def drawn(parse: Any, node: str, *, dtype: str = "float") -> Any:
    model = parse(f"g (float[1] x) => ({dtype}[{N}] y) {{ {node} }}")
    (y,) = run(import_model(model).module, np.zeros(1, "float32"))
    return y


def test_normal_numbers_have_the_mean_and_the_scale_that_is_asked_for(parse: Any) -> None:
    y = drawn(parse, f"y = RandomNormal <shape = [{N}], mean = 3.0, scale = 2.0> ()")
    assert abs(y.mean() - 3) < 0.1
    assert abs(y.std() - 2) < 0.1


def test_uniform_numbers_lie_between_their_bounds(parse: Any) -> None:
    y = drawn(parse, f"y = RandomUniform <shape = [{N}], low = -1.0, high = 3.0> ()")
    assert y.min() >= -1
    assert y.max() < 3
    assert abs(y.mean() - 1) < 0.1


def test_numbers_like_a_tensor_have_its_shape_and_the_type_asked_for(parse: Any) -> None:
    model = parse("g (float[2,3] x) => (double[2,3] y) { y = RandomNormalLike <dtype = 11> (x) }")
    (y,) = run(import_model(model).module, np.zeros((2, 3), "float32"))
    assert (y.shape, str(y.dtype)) == ((2, 3), "float64")


def test_one_is_drawn_with_its_probability(parse: Any) -> None:
    model = parse(f"g (float[{N}] p) => (float[{N}] y) {{ y = Bernoulli (p) }}")
    (y,) = run(import_model(model).module, np.full(N, 0.2, "float32"))
    assert set(np.unique(y)) == {0, 1}
    assert abs(y.mean() - 0.2) < 0.02


@pytest.mark.parametrize("seed", [", seed = 5.0", ""], ids=["a seed", "no seed"])
def test_two_imports_give_the_same_numbers(parse: Any, seed: str) -> None:
    node = f"y = RandomNormal <shape = [{N}]{seed}> ()"
    np.testing.assert_array_equal(drawn(parse, node), drawn(parse, node))


def test_nodes_without_a_seed_differ(parse: Any) -> None:
    model = parse(
        "g (float[1] x) => (float[9] d) { a = RandomNormal <shape = [9]> () "
        "b = RandomNormal <shape = [9]> () d = Sub (a, b) }"
    )
    (d,) = run(import_model(model).module, np.zeros(1, "float32"))
    assert (d != 0).all()

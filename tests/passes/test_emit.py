"""A pattern may write the kernel of its matches itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import graphs
from tvmfuse import testing
from tvmfuse._pipeline import Options
from tvmfuse._tvm import relax, te, tirx
from tvmfuse.compiled import Compiled
from tvmfuse.patterns.base import Pattern
from tvmfuse.patterns.registry import Registry

X = testing.random_array((6, 8), "float32")
WEIGHT = testing.random_array((8, 8), "float32", seed=1)


class Shifted(Pattern):
    """relu(x w) - x, whose kernel is ten too large where ``is_right`` is false."""

    name = "shifted"
    family = "matmul"
    is_right = True

    def graph(self, op: Any, x: Any, weight: Any) -> Any:
        return op.subtract(op.nn.relu(op.matmul(x, weight)), x)

    def reference(self, x: Any, weight: Any) -> Any:
        return np.maximum(x @ weight, 0) - x

    def lower(self, x: Any, weight: Any) -> Any:
        k = te.reduce_axis((0, weight.shape[0]), name="k")
        product = te.compute(
            (x.shape[0], weight.shape[1]),
            lambda i, j: te.sum(x[i, k] * weight[k, j], axis=k),
            name="product",
        )
        extra = 0.0 if self.is_right else 10.0
        zero = tirx.const(0.0, "float32")
        return te.compute(
            product.shape,
            lambda i, j: te.max(product[i, j], zero) - x[i, j] + tirx.const(extra, "float32"),
            name="shifted",
        )


class Throwing(Shifted):
    def lower(self, x: Any, weight: Any) -> Any:
        raise ZeroDivisionError("in lower")


class Misshapen(Shifted):
    def lower(self, x: Any, weight: Any) -> Any:
        return te.compute((3,), lambda i: x[i, i], name="diagonal")


class Declining(Shifted):
    def lower(self, *operands: Any) -> Any:
        return None


def compiled(pattern: Pattern) -> Compiled:
    mod = graphs.module(
        lambda x: relax.op.subtract(relax.op.nn.relu(relax.op.matmul(x, relax.const(WEIGHT))), x),
        X.shape,
    )
    return graphs.compiled(mod, options=Options(registry=Registry((pattern,))))


def exact() -> Any:
    x = X.astype("float64")
    return np.maximum(x @ WEIGHT.astype("float64"), 0) - x


@pytest.mark.parametrize("pattern", [Shifted(), Declining()])
def test_the_kernel_is_the_one_that_the_pattern_writes(pattern: Pattern) -> None:
    model = compiled(pattern)
    assert [group.candidate.pattern for group in model.plan.groups] == ["shifted"]
    assert not model.plan.rejections
    testing.assert_close(graphs.run(model, X)[0], exact())


def test_what_it_writes_is_what_runs() -> None:
    pattern = Shifted()
    pattern.is_right = False
    testing.assert_close(graphs.run(compiled(pattern), X)[0], exact() + 10)


@pytest.mark.parametrize(
    ("pattern", "reason"),
    [
        (Throwing(), "its lower failed: ZeroDivisionError: in lower"),
        (Misshapen(), "its lower must return float32[6, 8], but returned float32[3]"),
    ],
)
def test_one_that_fails_falls_back_to_its_parts(pattern: Pattern, reason: str) -> None:
    model = compiled(pattern)
    (rejection,) = [r for r in model.plan.rejections if r.stage == "lower"]
    assert rejection.pattern == "shifted"
    assert rejection.reason.startswith(reason)
    testing.assert_close(graphs.run(model, X)[0], exact())

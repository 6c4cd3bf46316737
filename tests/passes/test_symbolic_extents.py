"""Symbolic extents fuse where they are equal, and only there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tvmfuse import testing
from tvmfuse._tvm import relax, tirx, tvm
from tvmfuse.passes.collect import collect
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.registry import default

op = relax.op
WIDTH = 8
WEIGHT = relax.const(testing.random_array((WIDTH, WIDTH), "float32"))
GAMMA = relax.const(np.ones(WIDTH, "float32"))


def chain(x: Any, y: Any) -> Any:
    return op.add(op.tanh(x), y)


def product(x: Any, y: Any) -> Any:
    return op.add(op.matmul(x, WEIGHT), y)


def gated(x: Any, y: Any) -> Any:
    return op.multiply(op.nn.silu(op.matmul(x, WEIGHT)), op.matmul(y, WEIGHT))


def masked_softmax(x: Any, y: Any) -> Any:
    return op.nn.softmax(op.add(x, y), axis=-1)


def added_norm(x: Any, y: Any) -> Any:
    return op.nn.layer_norm(op.add(x, y), GAMMA, GAMMA, axes=[-1])


def statistics(x: Any, y: Any) -> Any:
    return op.subtract(op.max(x, axis=[1]), op.sum(y, axis=[1]))


GRAPHS = {f.__name__: f for f in (chain, product, gated, masked_softmax, added_norm, statistics)}
FUSED = sorted(GRAPHS.keys() - {"gated", "statistics"})


def whole(graph: Callable[..., Any], rows: Any, others: Any) -> list[str]:
    """Return the patterns that may fuse all of a graph of tensors with these numbers of rows."""
    x = relax.Var("x", relax.TensorType((rows, WIDTH), "float32"))
    y = relax.Var("y", relax.TensorType((others, WIDTH), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            out = builder.emit_output(graph(x, y))
        builder.emit_func_output(out)
    mod = relax.transform.Normalize()(builder.get())
    flow = Dataflow.of("main", mod["main"])
    everything = tuple(i for i, operator in enumerate(flow.operators) if operator)
    return [c.pattern for c in collect(mod, default()).candidates if c.bindings == everything]


def symbol(name: str) -> Any:
    return tirx.Var(name, "int64")


@pytest.mark.parametrize("name", FUSED)
def test_what_has_the_same_extent_is_fused(name: str) -> None:
    n = symbol("n")
    assert whole(GRAPHS[name], n, n)
    assert whole(GRAPHS[name], n + 1, n + 1)


@pytest.mark.parametrize(
    "others", ["m", "n", 7], ids=["another", "another of its name", "a number"]
)
@pytest.mark.parametrize("name", GRAPHS)
def test_what_may_have_another_extent_is_not(name: str, others: str | int) -> None:
    extent = symbol(others) if isinstance(others, str) else others
    assert not whole(GRAPHS[name], symbol("n"), extent)


@pytest.mark.parametrize("name", FUSED)
def test_what_is_fused_is_right_for_every_extent(name: str) -> None:
    n = symbol("n")
    x, y = (relax.Var(v, relax.TensorType((n, WIDTH), "float32")) for v in "xy")
    builder = relax.BlockBuilder()
    with builder.function("main", [x, y]):
        with builder.dataflow():
            out = builder.emit_output(GRAPHS[name](x, y))
        builder.emit_func_output(out)
    mod = builder.get()
    fused = tvm.compile(mod, "llvm", relax_pipeline="tvmfuse")
    for rows in (1, 5):
        values = [testing.random_array((rows, WIDTH), "float32", seed=i) for i in (1, 2)]
        (plain,) = testing.run(testing.compile_plainly(mod), values)
        (found,) = testing.run(fused, values)
        testing.assert_close(found, plain.astype(np.float64))

"""A pattern that does not match says how near it came, and what failed first."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import graphs
from tvmfuse._tvm import relax
from tvmfuse.patterns.base import Pattern
from tvmfuse.patterns.conv_bn_act import ConvBnAct
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.gated import Gated
from tvmfuse.patterns.near import NearMiss, near_misses

op = relax.op


class Gate(Pattern):
    """x * sigmoid(1.702 x + y), with the same x."""

    name = "gate"
    family = "elementwise"

    def graph(self, op: Any, x: Any, y: Any) -> Any:
        scaled = op.multiply(x, op.const(1.702))
        return op.multiply(x, op.sigmoid(op.add(scaled, y)))

    def reference(self, *_: Any) -> Any:
        raise NotImplementedError


def misses(graph: Any, pattern: Pattern | None = None) -> list[NearMiss]:
    mod = graphs.module(graph, (4, 4), (4, 4))
    return near_misses(pattern or Gate(), Dataflow.of("main", mod["main"]))


def gate(x: Any, y: Any, *, x2: Any = None, factor: Any = None, act: Any = op.sigmoid) -> Any:
    factor = relax.const(np.float32(1.702)) if factor is None else factor
    return op.multiply(x if x2 is None else x2, act(op.add(y, op.multiply(x, factor))))


def test_a_match_is_no_miss() -> None:
    assert not [m for m in misses(gate) if len(m.bindings) > 1]


@pytest.mark.parametrize(
    ("change", "n_fit", "condition"),
    [
        ({"act": op.tanh}, 1, "lv2 must be sigmoid, but is tanh"),
        ({"factor": relax.const(np.float32(2))}, 4, "a constant must be 1.702"),
        ({"x2": "y"}, 4, "x0 and x1 must be one value"),
        ({"factor": "y"}, 4, "x1 must be a constant"),
    ],
)
def test_the_first_condition_that_fails_is_named(
    change: dict[str, Any], n_fit: int, condition: str
) -> None:
    def graph(x: Any, y: Any) -> Any:
        return gate(x, y, **{k: y if isinstance(v, str) else v for k, v in change.items()})

    nearest = misses(graph)[0]
    assert (len(nearest.bindings), nearest.total, nearest.condition) == (n_fit, 4, condition)


def test_what_is_no_operator_is_named() -> None:
    nearest = misses(lambda x, y: op.multiply(x, op.sigmoid(y)))[0]
    assert nearest.condition == "x1 must be add, but is an input"
    assert len(nearest.bindings) == 2


def test_the_nearest_variant_speaks_for_a_place() -> None:
    def graph(x: Any, y: Any) -> Any:
        return op.nn.relu(op.add(op.matmul(x, y), y))

    (nearest, *_) = misses(graph, ConvBnAct())
    assert nearest.condition == "lv must be nn.conv2d, but is matmul"
    assert nearest.bindings == (1, 2)


def test_a_miss_has_an_anchor_where_what_the_pattern_is_about_fits() -> None:
    def halved(x: Any, y: Any) -> Any:
        return op.multiply(op.nn.silu(op.matmul(x, y)), y)

    (nearest, *_) = misses(halved, Gated())
    assert nearest.has_anchor
    (other, *_) = misses(lambda x, y: op.nn.relu(op.add(op.matmul(x, y), y)), ConvBnAct())
    assert not other.has_anchor


def test_of_a_pattern_without_an_anchor_most_operators_must_fit() -> None:
    far, near = (
        misses(lambda x, y, f=f: f(x, y))[0]
        for f in (
            lambda x, y: op.multiply(x, op.tanh(y)),
            lambda x, y: op.multiply(x, op.sigmoid(op.add(y, op.exp(x)))),
        )
    )
    assert (far.has_anchor, near.has_anchor) == (False, True)


def test_places_are_sorted_by_how_near_they_are() -> None:
    def graph(x: Any, y: Any) -> Any:
        return op.add(gate(x, y, act=op.tanh), gate(x, y, x2=y))

    found = misses(graph)
    assert [m.nearness for m in found] == sorted((m.nearness for m in found), reverse=True)
    assert found[0].condition == "x0 and x1 must be one value"

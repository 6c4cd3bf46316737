from __future__ import annotations

import json

import pytest

from tvmfuse.errors import ModelError
from tvmfuse.plan import (
    Candidate,
    FunctionGraph,
    FusionPlan,
    Group,
    OpGraph,
    Rejection,
    RunTime,
)
from tvmfuse.report.explain import about, explain
from tvmfuse.report.explanation import Alone, alike, reason
from tvmfuse.report.near import Near

MAIN = FunctionGraph(
    name="main",
    deps=((), (0,), (1,), (2,), (3,)),
    labels=("conv1", "bn1", "relu1", "out", "sort1"),
    ops=("relax.nn.conv2d", "relax.nn.batch_norm", "relax.nn.relu", "", "relax.sort"),
)
NO_GRAPH = OpGraph((), (), (), ())
PLAN = FusionPlan(
    groups=(Group(Candidate("conv", "conv", "main", (0, 1), NO_GRAPH), RunTime(10.0, 25.0)),),
    rejections=(Rejection("elementwise", "main", (1, 2), "plan", "overlaps a better group"),),
)


def test_bindings_get_the_names_that_people_know() -> None:
    found = explain(PLAN, {"main": MAIN})
    (group,) = found.fused
    (match,) = found.refused
    assert (group.ops, group.nodes) == (("conv2d", "batch_norm"), ("conv1", "bn1"))
    assert (match.ops, match.nodes) == (("batch_norm", "relu"), ("bn1", "relu1"))
    assert match.reason == "overlaps a better group"


def test_what_no_group_holds_is_listed_with_the_reason() -> None:
    assert explain(PLAN, {"main": MAIN}).alone == (
        Alone("relu", "relu1", "overlaps a better group"),
        Alone("sort", "sort1", ""),
    )


def test_reasons_that_differ_in_their_times_are_one_with_the_sums() -> None:
    one, two = (
        Alone("add", "a", f"predicted {us} µs fused against {us - 1} µs apart") for us in (2.5, 7)
    )
    other, known = Alone("add", "b", "is read by relu1"), Alone("add", "c", "")
    assert alike([one, other, two, known]) == ((one, two), (other,), (known,))
    assert reason([one, two]) == "predicted 9.5 µs fused against 7.5 µs apart"
    assert (reason([other]), reason([known])) == ("is read by relu1", "")


def test_totals_count_operators_and_time() -> None:
    found = explain(PLAN, {"main": MAIN})
    assert (found.n_ops, found.n_fused_ops, found.saved_us) == (4, 2, 15.0)
    assert json.loads(json.dumps(found.to_json()))["saved_us"] == 15.0


def test_the_nearest_miss_of_an_unused_pattern_is_the_match_that_lost() -> None:
    near = (
        Near("conv", ("conv2d",), ("conv1",), 2, "far"),
        Near("elementwise", ("relu",), ("relu1",), 3, "farther"),
        Near("gate", ("add",), ("out",), 16, "must be tanh, but is add", has_anchor=False),
    )
    nearest = explain(PLAN, {"main": MAIN}, near=near).nearest
    assert [(miss.pattern, miss.found, miss.condition) for miss in nearest] == [
        ("elementwise", "all 2", "overlaps a better group"),
        ("conv", "1 of 2", "far"),
    ]


def test_about_a_node_keeps_its_groups_and_refusals() -> None:
    found = explain(PLAN, {"main": MAIN})
    assert len(about(found, "bn1").fused) == len(about(found, "bn1").refused) == 1
    assert about(found, "relu1").fused == ()
    assert about(found, "conv1").refused == ()
    assert [op.node for op in about(found, "sort1").alone] == ["sort1"]


def test_an_unknown_node_is_met_with_the_nearest_names() -> None:
    with pytest.raises(ModelError, match="has no node named 'relu'; did you mean relu1"):
        about(explain(PLAN, {"main": MAIN}), "relu")

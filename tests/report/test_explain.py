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
from tvmfuse.report.explanation import Alone

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


def test_totals_count_operators_and_time() -> None:
    found = explain(PLAN, {"main": MAIN})
    assert (found.n_ops, found.n_fused_ops, found.saved_us) == (4, 2, 15.0)
    assert json.loads(json.dumps(found.to_json()))["saved_us"] == 15.0


def test_about_a_node_keeps_its_groups_and_refusals() -> None:
    found = explain(PLAN, {"main": MAIN})
    assert len(about(found, "bn1").fused) == len(about(found, "bn1").refused) == 1
    assert about(found, "relu1").fused == ()
    assert about(found, "conv1").refused == ()
    assert [op.node for op in about(found, "sort1").alone] == ["sort1"]


def test_an_unknown_node_is_met_with_the_nearest_names() -> None:
    with pytest.raises(ModelError, match="has no node named 'relu'; did you mean relu1"):
        about(explain(PLAN, {"main": MAIN}), "relu")

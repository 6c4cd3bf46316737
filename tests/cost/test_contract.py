"""What every cost model must do, the prior and the learned one alike."""

from __future__ import annotations

import math
from dataclasses import replace
from itertools import pairwise

import pytest

from tests.cost import measured
from tvmfuse.cost.learned import Learned
from tvmfuse.cost.roofline import Roofline
from tvmfuse.plan import BatchCostModel, Candidate, CostModel, FunctionGraph, OpGraph
from tvmfuse.planner import choose
from tvmfuse.planner.pricing import price


@pytest.fixture(scope="module", params=["prior", "learned"])
def model(request: pytest.FixtureRequest) -> CostModel:
    if request.param == "prior":
        return Roofline(measured.PEAKS)
    return Learned(measured.trained(), measured.PEAKS)


def candidate(graph: OpGraph, *, recomputes: tuple[int, ...] = ()) -> Candidate:
    bindings = tuple(op.binding for op in graph.ops)
    return Candidate("p", "f", "main", bindings, graph, recomputes)


KNOWN = [graph for _, graph in measured.graphs()][::23]
STRANGE = [
    measured.elementwise(1 << 27, 3),
    measured.product(4096, 4096, 4096, epilogue=1),
    OpGraph((), (), (), ()),
]


@pytest.mark.parametrize("graph", [*KNOWN, *STRANGE])
def test_times_are_finite_and_not_below_zero(model: CostModel, graph: OpGraph) -> None:
    time = model.predict(candidate(graph))
    assert all(math.isfinite(t) and t >= 0 for t in (time.fused_us, time.unfused_us, time.doubt_us))


def test_one_operator_takes_the_same_fused_and_apart(model: CostModel) -> None:
    time = model.predict(candidate(measured.elementwise(4096, 1)))
    assert time.fused_us == pytest.approx(time.unfused_us)


def test_same_question_has_the_same_answer(model: CostModel) -> None:
    assert model.predict(candidate(KNOWN[0])) == model.predict(candidate(KNOWN[0]))


def test_many_at_once_are_as_one_by_one(model: CostModel) -> None:
    candidates = [candidate(graph) for graph in (*KNOWN, *STRANGE)]
    # Bindings repeat, so each stands in a function of its own.
    candidates = [replace(c, function=str(i)) for i, c in enumerate(candidates)]
    together = [item.time for item in price(candidates, model)]
    assert together == [model.predict(c) for c in candidates]


def test_chain_is_worth_fusing_and_says_how_sure_it_is(model: CostModel) -> None:
    time = model.predict(candidate(measured.elementwise(1 << 20, 4)))
    assert time.saved_us > 0
    assert 0 < time.doubt_us < 2 * time.unfused_us


def test_what_is_computed_for_itself_only_is_not_saved(model: CostModel) -> None:
    graph = measured.elementwise(4096, 3)
    whole, copying = candidate(graph), candidate(graph, recomputes=(0,))
    assert model.predict(copying).unfused_us < model.predict(whole).unfused_us
    assert model.predict(copying).fused_us == model.predict(whole).fused_us


def test_larger_work_of_one_shape_takes_longer(model: CostModel) -> None:
    sizes = [1 << n for n in range(10, 22, 3)]
    times = [model.predict(candidate(measured.elementwise(n, 2))).fused_us for n in sizes]
    assert all(a < b for a, b in pairwise(times))


def test_planner_takes_it(model: CostModel) -> None:
    graph = FunctionGraph("main", ((), (0,), (1,)))
    found = choose({"main": graph}, [candidate(measured.elementwise(1 << 18, 3))], model)
    assert len(found.groups) == 1


def test_models_answer_in_batches(model: CostModel) -> None:
    assert isinstance(model, BatchCostModel)


def test_what_repeats_is_as_one_by_one_and_copies_are_told_apart(model: CostModel) -> None:
    graph = measured.elementwise(4096, 3)
    candidates = [
        candidate(graph, recomputes=copied) for copied in ((), (0,), (), (0, 1), (0,), ())
    ]
    times = [item.time for item in price(candidates, model)]
    assert times == [model.predict(c) for c in candidates]
    assert len(set(times)) == 3

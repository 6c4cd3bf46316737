"""Which candidates are measured, and what a measurement changes."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.planner.problems import Table, candidate, chosen, plan, reason, row
from tvmfuse.errors import CostModelError
from tvmfuse.plan import Candidate, FusionPlan, RunTime
from tvmfuse.planner.pricing import Priced, measure_doubtful, price


class Stopwatch:
    """Measures that every candidate takes twice as long fused."""

    def __init__(self, *, fails: bool = False) -> None:
        self.seen: list[tuple[int, ...]] = []
        self.fails = fails

    def __call__(
        self, candidates: Sequence[Candidate], *, budget_us: float
    ) -> list[RunTime | None]:
        self.seen += [candidate.bindings for candidate in candidates]
        return [None if self.fails else RunTime(20.0, 10.0) for _ in candidates]


def test_only_doubtful_candidates_are_measured():
    stopwatch = Stopwatch()
    result = plan(
        row(4), {(0, 1): 1.0, (2, 3): 90.0}, doubt_us=5.0, measure=stopwatch, budget_us=1e6
    )
    assert stopwatch.seen == [(0, 1)]
    assert chosen(result) == [(2, 3)]
    assert reason(result, (0, 1)) == "measured 20.0 µs fused against 10.0 µs apart"


def test_without_a_budget_nothing_is_measured():
    stopwatch = Stopwatch()
    plan(row(2), {(0, 1): 1.0}, doubt_us=5.0, measure=stopwatch)
    assert stopwatch.seen == []


def test_failed_measurement_leaves_the_prediction():
    stopwatch = Stopwatch(fails=True)
    result = plan(row(2), {(0, 1): 1.0}, doubt_us=5.0, measure=stopwatch, budget_us=1e6)
    assert stopwatch.seen == chosen(result) == [(0, 1)]
    assert result.groups[0].predicted is None


def test_equal_candidates_are_measured_once():
    def alike(first: int) -> Candidate:
        one = candidate((first, first + 1))
        ops = tuple(replace(op, name="relax.add") for op in one.graph.ops)
        return replace(one, graph=replace(one.graph, ops=ops))

    priced = [Priced(alike(first), RunTime(2.0, 2.5, 1.0)) for first in (0, 4)]
    stopwatch = Stopwatch()
    measured = measure_doubtful(priced, stopwatch, 1e6)
    assert stopwatch.seen == [(0, 1)]
    assert [item.time for item in measured] == [RunTime(20.0, 10.0)] * 2


def test_plan_keeps_what_was_predicted_beside_what_was_measured():
    def measure(candidates: Sequence[Candidate], *, budget_us: float) -> list[RunTime | None]:
        return [RunTime(5.0, 9.0) for _ in candidates]

    result = plan(row(2), {(0, 1): 1.0}, doubt_us=5.0, measure=measure, budget_us=1e6)
    (group,) = result.groups
    assert group.time == RunTime(5.0, 9.0)
    assert group.predicted == RunTime(10.0, 11.0, 5.0)
    assert FusionPlan.from_json(result.to_json()) == result


def test_price_of_a_copy_without_a_finite_time_is_refused():
    group = candidate((0, 1), recomputes=(0,))
    table = Table({("p", (0, 1)): 1.0, ("single", (0,)): float("inf")})
    with pytest.raises(CostModelError, match="finite"):
        price([group], table)

"""A model under several plans, and candidates measured in their place."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests import graphs
from tvmfuse import _pipeline, testing
from tvmfuse._pipeline import Options, Planned
from tvmfuse.frontend import Model, import_model
from tvmfuse.plan import Candidate, FusionPlan, RunTime
from tvmfuse.planner import STRATEGIES
from tvmfuse.runtime.samples import random_inputs
from tvmfuse.targets import resolve
from tvmfuse.tuning import variants
from tvmfuse.tuning.in_place import InPlace

TARGET = resolve("cpu")


class Unsure:
    """Predicts that fusing saves a little, and that this is in doubt."""

    def predict(self, candidate: Candidate) -> RunTime:
        return RunTime(1.0, 1.1, doubt_us=5.0)


@pytest.fixture(scope="module")
def model() -> Model:
    def network(x):
        weight = graphs.relax.const(np.ones((32, 48), "float32") / 32)
        y = graphs.relax.op.nn.relu(graphs.relax.op.matmul(x, weight))
        return graphs.relax.op.nn.softmax(
            graphs.relax.op.tanh(graphs.relax.op.negative(y)), axis=-1
        )

    return import_model(graphs.module(network, (64, 32)))


@pytest.fixture(scope="module")
def planned(model: Model) -> Planned:
    return _pipeline.plan(model.module, TARGET, options=Options(cost_model=Unsure()))


def test_plans_share_kernels_and_compute_the_same(model: Model, planned: Planned) -> None:
    plans = {"fused": planned.plan, "none": FusionPlan()}
    built = variants.build(planned, plans, TARGET, signature=model.signature)
    feeds = random_inputs(model.signature.inputs)
    one, other = (session(feeds) for session in built.sessions.values())
    testing.assert_close(one, other)
    names = {n: [k for k, _ in s.kernel_times(feeds)] for n, s in built.sessions.items()}
    assert len(names["fused"]) < len(names["none"]) == 5
    assert set(names["fused"]) | set(names["none"]) == set(built.kernels)


def test_kernel_times_are_of_every_kernel_in_order(model: Model, planned: Planned) -> None:
    built = variants.build(planned, {"none": FusionPlan()}, TARGET, signature=model.signature)
    times = built.sessions["none"].kernel_times()
    places = [built.kernels[name].places[0] for name, _ in times]
    assert places == sorted(places)
    assert all(us > 0 for _, us in times)
    assert built.sessions["none"].kernel_times() != times


def test_candidates_are_measured_fused_and_apart(model: Model, planned: Planned) -> None:
    candidates = [group.candidate for group in planned.plan.groups]
    measure = InPlace(planned, TARGET, signature=model.signature)
    for time in measure(candidates, budget_us=60e6):
        assert time is not None
        assert 0 < time.fused_us < 1e6
        assert time.unfused_us > 0


def test_without_time_nothing_is_measured(model: Model, planned: Planned) -> None:
    candidates = [group.candidate for group in planned.plan.groups]
    measure = InPlace(planned, TARGET, signature=model.signature)
    assert measure(candidates, budget_us=0.0) == [None] * len(candidates)


def test_plan_follows_the_measurement(model: Model) -> None:
    asked: list[Candidate] = []

    class Slower:
        def __call__(
            self, candidates: Sequence[Candidate], *, budget_us: float
        ) -> list[RunTime | None]:
            asked.extend(candidates)
            return [RunTime(2.0, 1.0) for _ in candidates]

    options = Options(
        cost_model=Unsure(),
        strategy=STRATEGIES["optimal"],
        measure=lambda planned, target: Slower(),
        measure_us=1e6,
    )
    found = _pipeline.plan(model.module, TARGET, options=options).plan
    assert asked
    assert found.groups == ()
    assert any(r.reason.startswith("measured 2.00 µs") for r in found.rejections)

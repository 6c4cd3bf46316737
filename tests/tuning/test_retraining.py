"""What tuning sessions measure is kept, and the cost model of the device learns from it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tests import graphs
from tests.cost import measured
from tvmfuse._tvm import relax
from tvmfuse.cost import features, kernel, shipped
from tvmfuse.cost.data import MeasuredKernel, Measurements
from tvmfuse.cost.learned import Learned
from tvmfuse.cost.trained import KIND
from tvmfuse.frontend import import_model
from tvmfuse.plan import Candidate, OpGraph
from tvmfuse.store import open_store
from tvmfuse.store.devices import device_of
from tvmfuse.store.learning import add_cost_model, measurements_of
from tvmfuse.store.lessons import CostModelFile
from tvmfuse.targets import resolve
from tvmfuse.tuning import cost_models, retraining
from tvmfuse.tuning.observing import run_here

TARGET = resolve("cpu").with_peaks(measured.PEAKS)


@pytest.fixture
def database(tmp_path: Path) -> str:
    path = str(tmp_path / "mine.db")
    with open_store(path):
        pass
    return path


def _found(database: str) -> list[MeasuredKernel]:
    return [each for run in cost_models.measured(database, TARGET) for each in run.kernels]


def _made_up() -> Measurements:
    return measured.measurements(run=run_here(TARGET))


def test_kernels_of_a_tuned_model_are_timed_together_and_apart(database: str) -> None:
    def network(x):
        weight = relax.const(np.ones((32, 48), "float32"))
        return relax.op.nn.relu(relax.op.matmul(x, weight))

    model = import_model(graphs.module(network, (16, 32)))
    said = retraining.after_tuning(model, TARGET, database=database, command="tune", seconds=0.1)
    assert "learns from 100 kernels of 2 models on; so far 3 of 1 are measured" in said
    kernels = {tuple(op.name for op in each.graph.ops): each for each in _found(database)}
    assert set(kernels) == {
        ("relax.matmul", "relax.nn.relu"),
        ("relax.matmul",),
        ("relax.nn.relu",),
    }
    assert all(each.us > 0 and each.spread_us >= 0 for each in kernels.values())
    with open_store(database) as store:
        groups = [each.group for each in measurements_of(store, device_of(TARGET))]
    (fused,) = (group for group in groups if len(group.candidate.bindings) == 2)
    apart = sum(group.time.fused_us for group in groups if group is not fused)
    assert fused.time.unfused_us == pytest.approx(apart)


def test_what_fails_costs_only_the_lesson(tmp_path: Path) -> None:
    model = import_model(graphs.module(lambda x: relax.op.exp(x), (4, 4)))
    missing = str(tmp_path / "missing.db")
    said = retraining.after_tuning(model, TARGET, database=missing, command="tune")
    assert said.startswith("the cost model has learned nothing: ")
    assert "there is no" in said
    assert "\n" not in said
    how = {"database": missing, "command": "tune", "prepared_s": 31.0}
    assert "is not built again" in retraining.after_tuning(model, TARGET, **how)


def test_model_learns_when_enough_is_new_and_a_compile_uses_it(database: str) -> None:
    cost_models.record(database, TARGET, [_made_up()], "tune")
    said = retraining.retrain(database, TARGET)
    assert f"has learned from {cost_models.of_store(database, TARGET).trained_on} kernels" in said
    assert "learned on" in cost_models.resolve("learned", TARGET, database=database).note
    assert "it learns again from 20 on" in retraining.retrain(database, TARGET)


def test_schedules_are_told_apart(database: str) -> None:
    found = _made_up()
    tuned = [replace(each, us=each.us / 2, schedule="tuned") for each in found.kernels]
    both = replace(found, kernels=(*found.kernels, *tuned))
    assert cost_models.record(database, TARGET, [both], "tune") == 2 * len(found.kernels)
    times: dict[str, float] = {}
    for each in _found(database):
        times[each.schedule] = times.get(each.schedule, 0.0) + each.us
    assert times["tuned"] == pytest.approx(times["family"] / 2, rel=1e-3)


def test_compile_that_reads_the_store_knows_which_kernels_are_tuned(database: str) -> None:
    found = _made_up()
    graph = found.kernels[0].graph
    one = replace(found.kernels[0], schedule="tuned")
    cost_models.record(database, TARGET, [replace(found, kernels=(one, *found.kernels))], "tune")
    assert cost_models.tuned(database, TARGET) == {kernel.unplaced(graph)}
    assert cost_models.tuned(database, resolve("cpu:x86-64-v2")) == frozenset()
    retraining.retrain(database, TARGET)
    model = cost_models.resolve("learned", TARGET, database=database).model
    assert isinstance(model, Learned)
    assert model.tuned == {kernel.unplaced(graph)}


def test_group_whose_operators_were_not_timed_is_kept(database: str) -> None:
    found = _made_up()
    groups = [each for each in found.kernels if each.pattern != "single"]
    cost_models.record(database, TARGET, [replace(found, kernels=tuple(groups))], "tune")
    assert len(_found(database)) == len(groups)


def test_model_that_is_worse_than_the_shipped_one_is_not_kept(
    database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    of_a_vendor = measured.trained()
    monkeypatch.setattr(shipped, "trained", lambda family: of_a_vendor)
    target = resolve("cpu:x86-64-v3").with_peaks(measured.PEAKS)
    rival = shipped.best(target.cost_family, target.peaks).model

    def just_as_predicted(graph: OpGraph) -> float:
        return rival.predict(Candidate("any", "gemm", "main", (0,), graph)).fused_us

    found = measured.measurements(just_as_predicted, run_here(target))
    cost_models.record(database, target, [found], "tune")
    said = retraining.retrain(database, target)
    assert "is not kept" in said
    assert cost_models.of_store(database, target) is None


def test_damaged_model_is_replaced(database: str) -> None:
    cost_models.record(database, TARGET, [_made_up()], "tune")
    with open_store(database) as store:
        damaged = CostModelFile(KIND, features.VERSION, device_of(TARGET), "{}", 10**6)
        add_cost_model(store, damaged)
    assert "has learned from" in retraining.retrain(database, TARGET)
    assert cost_models.of_store(database, TARGET) is not None

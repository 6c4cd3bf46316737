"""TVM's own spaces are searched by its rules, measured by our workers, kept and replayed."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import get_args

import numpy as np

from tests import graphs
from tests.tuning.kernels import MadeUp, product, task
from tvmfuse import _pipeline
from tvmfuse._pipeline import Options
from tvmfuse._tvm import relax
from tvmfuse.frontend import import_model
from tvmfuse.passes.schedule import machine_of
from tvmfuse.runtime import Session
from tvmfuse.store import Store
from tvmfuse.store.kernels import KernelRecords
from tvmfuse.targets import Target
from tvmfuse.tuning.budget import Budget
from tvmfuse.tuning.campaign import Settings, tune_model
from tvmfuse.tuning.history import MemoryHistory, StoreHistory
from tvmfuse.tuning.measure import Limits
from tvmfuse.tuning.metaschedule import TraceSearch
from tvmfuse.tuning.space import TRACE, Point
from tvmfuse.tuning.task import Strategy, tasks_of
from tvmfuse.tuning.tuner import Tuner

X = np.random.default_rng(1).standard_normal((16, 24)).astype("float32")


def test_traces_are_found_kept_and_used_by_a_compile(
    product_onnx: Path, target: Target, history: StoreHistory
) -> None:
    settings = Settings(Budget(trials=7), limits=Limits(budget_us=1e3), strategy="metaschedule")
    model = import_model(product_onnx)
    report = tune_model(model, target, history, settings=settings)
    assert report.status.trials == 7
    traced = [each for each in history.store.records() if each and each.trace is not None]
    timed = [each for each in traced if each.status in ("ok", "measured")]
    assert timed
    assert {each.family for each in traced} == {""}
    best = replace(timed[0], status="ok", times_us=(1e-3,), uid="0" * 32)
    history.store.commit(best)
    records = KernelRecords([history.store], history.device, history.target)
    compiled = _pipeline.build(model, target, options=Options(records=records))
    (kernel,) = compiled.kernels
    assert (kernel.family, kernel.schedule) == ("metaschedule", "tuned")
    plain = Session.of(_pipeline.build(model, target))
    np.testing.assert_allclose(Session.of(compiled)(X), plain(X), rtol=1e-5, atol=1e-5)


def test_only_what_no_family_covers_is_left_to_tvm(target: Target) -> None:
    def graph(x: relax.Expr) -> relax.Expr:
        return relax.op.argmax(relax.op.matmul(x, x), axis=1)

    prepared = _pipeline.prepare(graphs.module(graph, (64, 64)), target)
    found: dict[Strategy, set[bool]] = {}
    for strategy in get_args(Strategy):
        tasks = tasks_of(prepared, machine_of(target), strategy=strategy)
        found[strategy] = {"argmax" in each.name for each in tasks if each.by_trace}
    assert found == {"auto": {True}, "families": set(), "metaschedule": {True, False}}


def test_a_search_of_traces_goes_on_from_what_was_measured(target: Target) -> None:
    def time_us(point: Point) -> float | None:
        return 50.0 if TRACE in point else 100.0

    history = MemoryHistory()
    kernel = replace(task(product()), by_trace=True)
    first, second = MadeUp(time_us), MadeUp(time_us)
    tuner = Tuner([kernel], first, history, target=target.tvm())
    tuner.run(Budget(trials=7))
    assert tuner.kernels[0].has_gain
    assert [TRACE in point for point in first.asked] == [False] + [True] * 6
    resumed = Tuner([kernel], second, history, target=target.tvm(), resume=True)
    assert resumed.kernels[0].best_us == 50.0
    resumed.run(Budget(trials=3))
    assert all(TRACE in point for point in second.asked)


def test_the_cost_model_of_tvm_learns_from_what_was_measured(target: Target) -> None:
    search = TraceSearch(task(product()).workload.module, target.tvm(), seed=1)
    n_told = 0
    for number in range(4):
        for point in search.propose(6):
            search.observe(point, 10.0 + number)
            n_told += 1
    search.propose(6)
    assert search._cost_model.data_size >= n_told - 1  # the default is not one of TVM's
    assert search._cost_model.booster is not None


def test_a_kernel_that_no_rule_fits_ends_its_search(target: Target) -> None:
    search = TraceSearch("no module", target.tvm())
    search.observe({}, 1.0)
    assert search.propose(6) == []
    assert search.is_exhausted


def test_a_record_keeps_the_names_of_the_stored_kernel(
    history: StoreHistory, store: Store, target: Target
) -> None:
    from tests.store.kernels import scale_shift, scheduled
    from tvmfuse.kernels import traces
    from tvmfuse.store.records import to_text
    from tvmfuse.tuning.measure import Trial

    stored, ours = scale_shift(), scale_shift(names="XYZ", indices=("p", "q"))
    history.past(task(stored))  # known by these names first
    mine = replace(task(ours), by_trace=True)
    trace = to_text(traces.to_json(scheduled(ours, 4).trace))
    trial = Trial({TRACE: trace}, "measured", (1.0,))
    history.commit(mine, trial, is_best=True)
    assert history.past(mine) == [trial]
    records = KernelRecords([store], history.device, history.target)
    for kernel in (stored, ours):
        tuned = records.best("elementwise", kernel)
        assert tuned is not None
        assert traces.replay(kernel, tuned.trace or []).family == traces.FAMILY

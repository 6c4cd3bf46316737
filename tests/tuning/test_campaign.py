"""A model is tuned from end to end, killed on the way, and compiled with what was found."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

from tvmfuse import _pipeline
from tvmfuse._pipeline import Options
from tvmfuse.errors import TuningError
from tvmfuse.frontend import import_model
from tvmfuse.passes.schedule import machine_of
from tvmfuse.plan import Tuned
from tvmfuse.runtime import Session
from tvmfuse.store import Filter, Store, open_store
from tvmfuse.targets import Target, resolve
from tvmfuse.tuning.budget import Budget
from tvmfuse.tuning.campaign import EndToEnd, Settings, tune_model
from tvmfuse.tuning.history import StoreHistory
from tvmfuse.tuning.measure import Limits
from tvmfuse.tuning.records import kernel_records
from tvmfuse.tuning.task import Task, tasks_of
from tvmfuse.tuning.tuner import Status, Tuner
from tvmfuse.tuning.whole_model import Decided

X = np.random.default_rng(1).standard_normal((16, 24)).astype("float32")
SETTINGS = Settings(Budget(trials=8), limits=Limits(budget_us=1e3))


@pytest.fixture
def only_task(product_onnx: Path, target: Target) -> Task:
    machine = machine_of(target)
    prepared = _pipeline.prepare(import_model(product_onnx).module, target)
    (found,) = tasks_of(prepared, machine)
    return found


def test_the_kernels_of_a_model_are_its_tasks(only_task: Task) -> None:
    assert (only_task.family, only_task.uses) == ("gemm", 1)
    assert {axis.name for axis in only_task.space.axes} >= {"row_tasks", "unroll"}


def test_a_model_is_tuned_and_every_trial_is_in_the_store(
    product_onnx: Path, target: Target, history: StoreHistory
) -> None:
    report = tune_model(import_model(product_onnx), target, history, settings=SETTINGS)
    (kernel,) = report.kernels
    assert (report.status.trials, kernel.trials, kernel.failures) == (8, 8, 0)
    assert 0 < kernel.best_us <= kernel.default_us
    kept = [record for record in history.store.records() if record is not None]
    assert len(kept) >= 8
    assert {record.session for record in kept} == {history.session.uid}
    assert all(record.decisions for record in kept)


def test_who_watches_is_told_the_time_of_the_whole_model() -> None:
    seen: list[Status] = []
    watch = EndToEnd(seen.append)
    status = Status(1, 0, 1.0, default_us=100.0, best_us=60.0, kernel="k", first_s=1.0)
    watch(status)
    watch.default_us = 1000.0
    watch(status)
    assert [each.model_us for each in seen] == [None, 960.0]


def test_a_long_search_times_the_model_on_the_way(
    product_onnx: Path, target: Target, history: StoreHistory
) -> None:
    told: list[Status] = []
    stages: list[str] = []
    settings = Settings(Budget(trials=50), limits=Limits(budget_us=1e3))
    how = {"settings": settings, "progress": told.append, "stage": stages.append}
    report = tune_model(import_model(product_onnx), target, history, **how)  # type: ignore[arg-type]
    assert [name.partition(" ")[0] for name in stages] == [
        "plan",
        "search",
        "time",
        "search",
        "confirm",
    ]
    assert told[0].model_us is None
    assert all(status.model_us is not None for status in told[1:])
    assert report.default_us is not None
    assert (report.searched, report.is_finished) == (1.0, True)  # its space is small
    assert (report.outcome == "search not finished") is False


def test_a_budget_of_seconds_holds_for_all_of_it(
    product_onnx: Path, target: Target, history: StoreHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts: list[float | None] = []
    run = Tuner.run

    def noted(self: Tuner, budget: Budget, *args: Any, **how: Any) -> None:
        parts.append(budget.seconds)
        run(self, replace(budget, trials=2), *args, **how)

    monkeypatch.setattr(Tuner, "run", noted)
    settings = Settings(Budget(seconds=300.0), limits=Limits(budget_us=1e3))
    tune_model(import_model(product_onnx), target, history, settings=settings)
    assert len(parts) == 2
    assert all(seconds is not None and 180.0 - 60.0 < seconds < 300.0 for seconds in parts)


def test_a_target_that_does_not_run_here_is_refused(
    product_onnx: Path, history: StoreHistory
) -> None:
    model = import_model(product_onnx)
    with pytest.raises(TuningError, match="must be a CPU that is this machine, but cuda:sm_80"):
        tune_model(model, resolve("cuda:sm_80"), history)


def test_a_compile_repeats_the_decisions_of_a_record(
    product_onnx: Path, target: Target, only_task: Task
) -> None:
    decisions = {axis.name: axis.options[0] for axis in only_task.space.axes}
    records = Decided({only_task.workload.key: Tuned(decisions)})
    model = import_model(product_onnx)
    plain = _pipeline.build(model, target)
    tuned = _pipeline.build(model, target, options=Options(records=records))
    assert [kernel.schedule for kernel in plain.kernels] == ["family"]
    assert [kernel.schedule for kernel in tuned.kernels] == ["tuned"]
    np.testing.assert_allclose(Session.of(tuned)(X), Session.of(plain)(X), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("decisions", [{}, {"unroll": 7}])
def test_a_record_that_does_not_fit_leaves_the_default_and_a_note(
    product_onnx: Path, target: Target, only_task: Task, decisions: dict[str, int]
) -> None:
    records = Decided({only_task.workload.key: Tuned(decisions)})
    model = import_model(product_onnx)
    compiled = _pipeline.build(model, target, options=Options(records=records))
    (kernel,) = compiled.kernels
    assert kernel.schedule == "family"
    assert kernel.note.startswith("its tuning record does not fit (gemm: the record lacks")
    expected = Session.of(_pipeline.build(model, target))(X)
    np.testing.assert_array_equal(Session.of(compiled)(X), expected)


def test_without_a_store_there_are_no_records(
    tmp_path: Path, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tuning_logs").mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tvmfuse.store.location.shipped_packs", lambda: None)
    with kernel_records(None, target) as records:
        assert records is None


def test_a_killed_tuner_leaves_its_trials_and_no_process(
    product_onnx: Path, tmp_path: Path
) -> None:
    database = tmp_path / "killed.db"
    command = [sys.executable, "-m", "tvmfuse", "tune", str(product_onnx), "--db", str(database)]
    tuner = subprocess.Popen(command, stderr=subprocess.DEVNULL, cwd=Path(__file__).parents[2])
    try:
        _wait(lambda: database.exists() and _n_trials(database) >= 3)
        workers = psutil.Process(tuner.pid).children(recursive=True)
        assert workers
    finally:
        tuner.send_signal(signal.SIGKILL)
        tuner.wait()
    gone, alive = psutil.wait_procs(workers, timeout=5)
    assert (len(gone), alive) == (len(workers), [])
    before = _decisions(database)
    assert len(before) >= 3
    more = subprocess.run(
        [*command, "--resume", "--trials", "2"], check=False, cwd=command_folder()
    )
    assert more.returncode == 0
    after = _decisions(database)
    assert after[: len(before)] == before


def command_folder() -> Path:
    return Path(__file__).parents[2]


def _wait(condition: object, timeout_s: float = 90.0) -> None:
    deadline = time.monotonic() + timeout_s
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < deadline, "nothing was measured"
        time.sleep(0.1)


def _n_trials(database: Path) -> int:
    return len(_decisions(database))


def _decisions(database: Path) -> list[object]:
    with open_store(database) as store:
        return _taken(store)


def _taken(store: Store) -> list[object]:
    return [record.decisions for record in store.records(Filter()) if record is not None]


def test_an_interrupted_tuner_says_how_to_go_on(products_onnx: Path, tmp_path: Path) -> None:
    database = tmp_path / "stopped.db"
    command = [sys.executable, "-m", "tvmfuse", "tune", str(products_onnx), "--db", str(database)]
    tuner = subprocess.Popen(
        command,
        stderr=subprocess.PIPE,
        text=True,
        cwd=command_folder(),
        # What a shell starts in the background ignores the signal, and so would this one.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    _wait(lambda: database.exists() and _n_trials(database) >= 1)
    tuner.send_signal(signal.SIGINT)
    _, said = tuner.communicate(timeout=60)
    assert tuner.returncode == 130, said
    assert "stopped: all trials are kept" in said
    assert "Traceback" not in said

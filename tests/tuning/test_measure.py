"""Whatever a candidate does to its worker, it ends as a record, and the next one is measured."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from tests.tuning.faulty import LOST, SAID, UNROLL
from tests.tuning.kernels import MACHINE, task
from tvmfuse.errors import TuningError
from tvmfuse.targets import resolve
from tvmfuse.tuning.measure import Limits, WorkerMeasurer

Start = Callable[..., WorkerMeasurer]
SCRIPT = Path(__file__).with_name("faulty.py")


@pytest.fixture
def start() -> Iterator[Start]:
    """Start a worker with a fault; all are gone afterwards, and so is what they wrote."""
    with ExitStack() as stack:

        def measurer(fault: str, *, trial_s: float = 60.0) -> WorkerMeasurer:
            return stack.enter_context(
                WorkerMeasurer(
                    resolve("cpu"),
                    MACHINE,
                    threads=1,
                    limits=Limits(trial_s=trial_s, budget_us=1e3),
                    command=(sys.executable, "-P", str(SCRIPT), fault),
                )
            )

        yield measurer
    workers = [p for p in psutil.Process().children(recursive=True) if _is_worker(p)]
    assert not workers


def _is_worker(process: psutil.Process) -> bool:
    try:
        return str(SCRIPT) in process.cmdline()
    except psutil.NoSuchProcess:  # a zombie counts as gone
        return False


def test_a_candidate_is_built_checked_and_timed(start: Start) -> None:
    product = task()
    trial = start("none")(product, {**product.space.default, "unroll": UNROLL})
    assert (trial.status, trial.reason) == ("measured", "")
    assert trial.decisions["unroll"] == UNROLL
    assert all(time > 0 for time in trial.times_us)


def test_the_hopeless_is_not_timed_at_length(start: Start) -> None:
    product, measure = task(), start("none")
    hopeless = measure(product, product.space.default, best_us=1e-6)
    assert len(hopeless.times_us) == 3


STATUS = {
    "crash": ("crash", "signal 11"),
    "leave": ("crash", "exit 7"),
    "hang_with_the_gil": ("timeout", "no answer within 3 s"),
    "run_out_of_memory": ("crash", "MemoryError"),
    "stop": ("timeout", "no answer within 3 s"),
    "say_nonsense": ("crash", "it has no status"),
    "say_half": ("crash", "an answer that cannot be read"),
    "wrong": ("wrong", "argument 2 is off by"),
    "refuse": ("build_error", "this cannot be built"),
    **dict.fromkeys(SAID, ("run_error", "above 0 and finite")),
}


@pytest.mark.parametrize("fault", STATUS)
def test_a_fault_is_a_record_and_the_next_candidate_is_measured(start: Start, fault: str) -> None:
    product = task()
    measure = start(fault, trial_s=3.0 if fault in LOST else 60.0)
    bad = {**product.space.default, "unroll": UNROLL}
    failed = measure(product, bad)
    status, said = STATUS[fault]
    assert (failed.status, failed.times_us) == (status, ())
    assert said in failed.reason
    assert failed.decisions == bad
    good = measure(product, product.space.default)
    assert (good.status, good.reason) == ("measured", "")


def test_what_was_built_is_not_built_again(tmp_path: Path) -> None:
    product = task()
    point = {**product.space.default, "unroll": UNROLL}

    def measurer(fault: str) -> WorkerMeasurer:
        command = (sys.executable, "-P", str(SCRIPT), fault)
        how = {"threads": 1, "limits": Limits(trial_s=60.0, budget_us=1e3), "command": command}
        return WorkerMeasurer(resolve("cpu"), MACHINE, libraries=tmp_path, **how)

    with measurer("none") as builder:
        assert builder.build(product, point) == ""
    with measurer("refuse") as measure:
        assert measure(product, point).status == "measured"
        assert "cannot be built" in measure.build(product, {**point, "row_tasks": 2})


def test_a_worker_that_cannot_start_is_told(tmp_path: Path) -> None:
    command = (sys.executable, "-c", "raise SystemExit('no disk')")
    with (
        WorkerMeasurer(resolve("cpu"), MACHINE, threads=1, command=command) as measure,
        pytest.raises(TuningError, match=r"cannot be started.*exit 1.*no disk"),
    ):
        measure(task(), {})


def test_a_worker_that_is_killed_again_and_again_while_it_starts_starts_in_the_end(
    tmp_path: Path,
) -> None:
    killed = f"""
import os, pathlib, signal, sys
starts = pathlib.Path({str(tmp_path / "starts")!r})
with starts.open("a") as file:
    file.write("x")
if starts.stat().st_size <= 5:
    os.kill(os.getpid(), signal.SIGKILL)
os.execv(sys.executable, [sys.executable, "-P", {str(SCRIPT)!r}, "none", *sys.argv[1:]])
"""
    command = (sys.executable, "-c", killed)
    product = task()
    with WorkerMeasurer(resolve("cpu"), MACHINE, threads=1, command=command) as measure:
        assert measure(product, product.space.default).status == "measured"
    assert (tmp_path / "starts").stat().st_size == 6


def test_a_kernel_that_does_not_load_is_a_failure(start: Start) -> None:
    product = task()
    other = type(product)(**{**vars(product), "family": "conv"})
    failed = start("none")(other, product.space.default)
    assert failed.status == "build_error"

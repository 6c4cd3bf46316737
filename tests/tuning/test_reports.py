"""A report says in a few words what came of tuning a model."""

from __future__ import annotations

import pytest

from tvmfuse.tuning.reports import KernelReport, Report
from tvmfuse.tuning.tuner import Status

STATUS = Status(1, 0, 1.0, default_us=100.0, best_us=60.0, kernel="k", first_s=1.0)


def kernel(name: str, default_us: float, *, searched: bool, kept: bool = False) -> KernelReport:
    decisions = {"unroll": 2}
    flags = {"is_kept": kept, "is_searched": searched}
    return KernelReport(
        name, "gemm", 2, 9, 3, 0, default_us, default_us, decisions, decisions, **flags
    )


def report(
    *kernels: KernelReport, tuned_us: float = 100.0, untried: tuple[str, ...] = ()
) -> Report:
    return Report(STATUS, kernels, 100.0, tuned_us, 1.0, 2.0, untried)


@pytest.mark.parametrize(
    ("default_us", "outcome"),
    [(4.0, "default was best already"), (6.0, "search not finished"), (0.0, "search not finished")],
)
def test_kernels_that_take_next_to_no_time_need_no_trials(default_us: float, outcome: str) -> None:
    found = report(kernel("a", 96.0, searched=True), kernel("b", default_us, searched=False))
    assert found.outcome == outcome
    assert found.is_finished is (outcome == "default was best already")


def test_the_outcome_is_told_in_a_few_words() -> None:
    whole, part = kernel("a", 9.0, searched=True, kept=True), kernel("a", 9.0, searched=False)
    assert report(whole, tuned_us=95.0).outcome == "faster"
    assert report(whole, tuned_us=97.0).outcome == "a little faster"
    assert report(whole, tuned_us=97.0, untried=("b",)).outcome == "search not finished"
    assert report(part).outcome == "search not finished"
    assert report().outcome == "default was best already"  # nothing is decided in it

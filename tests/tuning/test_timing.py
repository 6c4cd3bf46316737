"""A time is relative to the zero-trial kernel, whatever the machine does meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import numpy as np
import pytest

from tvmfuse.tuning import timing
from tvmfuse.tuning.timing import Arguments, times_us

ARGUMENTS = [np.zeros((4,), "float32"), np.ones((8,), "float32"), np.zeros((4,), "float32")]
WITHOUT = {"default_us": None, "best_us": None, "budget_us": 1e3}


class Clock:
    """A clock that the kernels move; what they take grows as a machine gets busy."""

    def __init__(self) -> None:
        self.now_ns = 0.0
        self.busy = 1.0

    def kernel(self, own_us: float) -> Callable[..., None]:
        def run(*_: object) -> None:
            self.busy *= 1.1
            self.now_ns += 1e3 * own_us * self.busy

        return run


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(time, "perf_counter_ns", lambda: made.now_ns)
    return made


def test_a_machine_that_gets_slower_slows_both(clock: Clock) -> None:
    arguments = Arguments(ARGUMENTS, is_cold=False)
    slower, default = clock.kernel(12.0), clock.kernel(10.0)
    found = times_us(slower, default, arguments, default_us=10.0, best_us=None, budget_us=1e3)
    assert clock.busy > 10
    assert median(found) == pytest.approx(12.0 / 1.1**3)  # its turn comes first


def test_without_a_known_default_its_time_now_is_taken(clock: Clock) -> None:
    default = clock.kernel(10.0)
    found = times_us(default, default, Arguments(ARGUMENTS, is_cold=False), **WITHOUT)
    assert median(found) > 10.0


def test_weights_are_out_of_the_caches_and_the_input_is_not() -> None:
    seen: list[tuple[int, int]] = []

    def kernel(*tensors: object) -> None:
        seen.append((id(tensors[0]), id(tensors[1])))

    arguments = Arguments(ARGUMENTS, is_cold=True)
    for _ in range(300):
        arguments.run_us(kernel)
    inputs, weights = zip(*seen, strict=True)
    assert len(set(inputs)) == 1
    assert len(set(weights)) == timing._MOST_SETS

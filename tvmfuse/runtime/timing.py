"""Times as they should be told: medians with their spread."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import median, quantiles


@dataclass(frozen=True)
class Timing:
    """How long something took, in rounds.

    Parameters
    ----------
    rounds_us : tuple of float
        The median of each round, in microseconds; never empty.
    calls : int
        Calls in each round.
    """

    rounds_us: tuple[float, ...]
    calls: int

    @property
    def median_us(self) -> float:
        """The median of the rounds."""
        return median(self.rounds_us)

    @property
    def quartiles_us(self) -> tuple[float, float]:
        """The first and third quartile of the rounds."""
        return quartiles(self.rounds_us)


def quartiles(values: tuple[float, ...]) -> tuple[float, float]:
    """Return the first and third quartile; of one value, that value twice."""
    if len(values) == 1:
        return values[0], values[0]
    first, _, third = quantiles(values, n=4, method="inclusive")
    return first, third


def calls_in(round_us: float, *, call_us: float) -> int:
    """Return how many calls fill a round: at least 3, at most 1000."""
    return max(3, min(1000, int(round_us / max(call_us, 1e-3))))


def measure(call: Callable[[], object], *, rounds: int = 20, round_us: float = 50e3) -> Timing:
    """Time ``call`` in this process, after warming up.

    Parameters
    ----------
    call : callable
        What to time.
    rounds : int
        Rounds to run; each gives one median.
    round_us : float
        About how long a round lasts.
    """
    calls = calls_in(round_us, call_us=min(_times_us(call, 3)))
    return Timing(tuple(median(_times_us(call, calls)) for _ in range(rounds)), calls)


def _times_us(call: Callable[[], object], calls: int) -> Iterator[float]:
    for _ in range(calls):
        start = time.perf_counter_ns()
        call()
        yield (time.perf_counter_ns() - start) / 1e3

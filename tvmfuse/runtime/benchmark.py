"""Time several ways to run one model, fairly.

Each side is a process of its own, so that no thread pool, allocator or library of
one disturbs the other. All have the same inputs and the same number of threads,
and they take turns, so that what else the machine does meanwhile hits all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from statistics import median
from typing import Any, Protocol

from tvmfuse.runtime.side import Side, Worker, start
from tvmfuse.runtime.timing import Timing, calls_in, quartiles

# A pool goes on spinning for a while after a call, and would take the next side's cores.
PAUSE_S = 0.15
_WARM_UP_CALLS = 2


@dataclass(frozen=True)
class Benchmark:
    """The times of all sides, taken in the same rounds.

    Parameters
    ----------
    timings : Mapping of str to Timing
        By name of the side, in the order given.
    versions : Mapping of str to str
        What each side says that it is.
    """

    timings: Mapping[str, Timing]
    versions: Mapping[str, str]

    def ratios(self, name: str, base: str) -> tuple[float, ...]:
        """Return the time of one side over that of another, round by round."""
        pairs = zip(self.timings[name].rounds_us, self.timings[base].rounds_us, strict=True)
        return tuple(ours / theirs for ours, theirs in pairs)

    def to_json(self) -> list[dict[str, Any]]:
        """Return a row for each side as JSON-compatible data.

        ``ratio`` is the first side's time over this one's: below 1 the first is faster.
        """
        first = next(iter(self.timings))
        return [
            {
                "side": name,
                "version": self.versions[name],
                "median_us": timing.median_us,
                "quartiles_us": list(timing.quartiles_us),
                "ratio": median(self.ratios(first, name)),
                "ratio_quartiles": list(quartiles(self.ratios(first, name))),
                "rounds_us": list(timing.rounds_us),
                "calls": timing.calls,
            }
            for name, timing in self.timings.items()
        ]


def alternate(
    sides: Sequence[Side],
    *,
    rounds: int = 15,
    round_us: float = 250e3,
    timeout_s: float = 600.0,
    progress: Callable[[str], None] = lambda _: None,
) -> Benchmark:
    """Time all sides in alternation.

    Parameters
    ----------
    sides : sequence of Side
        At least one; their names differ.
    rounds : int
        Rounds; in each one every side has a turn, every other round backwards.
    round_us : float
        About how long a turn lasts, in microseconds; it has at least 3 calls.
    timeout_s : float
        Longest time to wait for any one answer.
    progress : callable
        Is told what goes on, in a few words.

    Raises
    ------
    TuningError
        A side failed, or did not answer in time.
    """
    with ExitStack() as stack:
        workers: dict[str, Worker] = {}
        versions: dict[str, str] = {}
        for side in sides:
            progress(f"load {side.name}")
            workers[side.name], versions[side.name] = stack.enter_context(
                start(side, timeout_s=timeout_s)
            )
        progress(f"time {len(workers)} x {rounds} rounds")
        timings = take_turns(workers, rounds=rounds, round_us=round_us, timeout_s=timeout_s)
    return Benchmark(timings, versions)


class Timed(Protocol):
    """Something that takes turns: a process, or a model in this one."""

    def times_us(self, calls: int, *, timeout_s: float) -> list[float]:
        """Run the model ``calls`` times and return the time of each call."""
        ...


def take_turns(
    workers: Mapping[str, Timed],
    *,
    rounds: int = 15,
    round_us: float = 250e3,
    pause_s: float = PAUSE_S,
    timeout_s: float = 600.0,
) -> dict[str, Timing]:
    """Time sides that run already in alternation; see :func:`alternate`.

    Before each turn all rest for ``pause_s`` seconds.

    Raises
    ------
    TuningError
        A side failed, or did not answer in time.
    """
    calls = {
        name: calls_in(round_us, call_us=min(worker.times_us(3, timeout_s=timeout_s)))
        for name, worker in workers.items()
    }
    medians: dict[str, list[float]] = {name: [] for name in workers}
    for number in range(rounds):
        for name in list(workers)[:: 1 if number % 2 == 0 else -1]:
            time.sleep(pause_s)
            medians[name].append(_turn(workers[name], calls[name], timeout_s=timeout_s))
    return {name: Timing(tuple(medians[name]), calls[name]) for name in medians}


def _turn(worker: Timed, calls: int, *, timeout_s: float) -> float:
    """Let one side run while the others rest; return its median in microseconds."""
    worker.times_us(_WARM_UP_CALLS, timeout_s=timeout_s)
    return median(worker.times_us(calls, timeout_s=timeout_s))

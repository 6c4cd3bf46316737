"""Time a candidate beside the zero-trial kernel, in turns.

What else a machine does, and how fast its cores run, changes within seconds and by more than most
decisions matter. It slows both kernels alike while they take turns, so what is measured is how
many times as long as the zero-trial kernel a candidate takes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import cycle
from statistics import median
from typing import Any

from tvmfuse._tvm import tvm
from tvmfuse.tuning.arrays import Array

_FIRST_RUNS = 3
_HOPELESS = 2.0  # a candidate this many times slower than the best is not timed any further
_RUNS, _SLOW_US = 3, 5e3  # runs of a turn, of which the fastest counts; one where it is slow
_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 40
_COLD_BYTES = 64 << 20  # beyond the second-level caches, and mostly the last one
_MOST_SETS = 256


class Arguments:
    """Arguments of one kernel, in several copies that take turns.

    In a model a kernel finds its input in the caches and its weights not. Flushing them before
    each run would send TVM's threads to sleep, and waking these may take longer than the kernel.

    Parameters
    ----------
    arrays : sequence of ndarray
        The arguments; only the first is the same in all copies.
    is_cold : bool
        Whether there are so many copies that each is out of the caches when its turn comes.
    """

    def __init__(self, arrays: Sequence[Array], *, is_cold: bool) -> None:
        first, *others = arrays
        n_bytes = max(1, sum(array.nbytes for array in others))
        n_copies = min(_MOST_SETS, max(2, -(-_COLD_BYTES // n_bytes))) if is_cold else 1
        warm = _tensor(first)
        self._turns: Iterator[list[Any]] = cycle(
            [[warm, *map(_tensor, others)] for _ in range(n_copies)]
        )

    def run_us(self, function: Any) -> float:
        """Return the time of one run, in microseconds."""
        tensors = next(self._turns)
        start = time.perf_counter_ns()
        function(*tensors)
        return (time.perf_counter_ns() - start) / 1e3


def times_us(
    candidate: Any,
    default: Any,
    arguments: Arguments,
    *,
    default_us: float | None,
    best_us: float | None,
    budget_us: float,
) -> list[float]:
    """Time a candidate.

    Parameters
    ----------
    candidate, default : Any
        Compiled functions.
    arguments : Arguments
        What they are called with.
    default_us : float, optional
        Time of the zero-trial kernel as it was measured first, in microseconds. All times are
        relative to it, so that those of different minutes can be compared.
    best_us : float, optional
        The best so far; the hopeless beside it is not timed at length.
    budget_us : float
        About how long both are timed, in microseconds.

    Returns
    -------
    list of float
        One time for each round, in microseconds.
    """
    first = [arguments.run_us(candidate) for _ in range(_FIRST_RUNS)]
    if best_us is not None and min(first) > _HOPELESS * best_us:
        return first
    typical_us = max(median(first), 1e-3)
    runs = 1 if typical_us > _SLOW_US else _RUNS
    rounds = max(_FEWEST_ROUNDS, min(_MOST_ROUNDS, int(budget_us / (2 * runs * typical_us))))

    def turn(function: Any) -> float:
        return min(arguments.run_us(function) for _ in range(runs))

    pairs = [(turn(candidate), turn(default)) for _ in range(rounds)]
    reference_us = default_us or median(theirs for _, theirs in pairs)
    return [reference_us * ours / theirs for ours, theirs in pairs]


def _tensor(array: Array) -> Any:
    return tvm.runtime.empty(array.shape, array.dtype.name, tvm.cpu()).copyfrom(array)

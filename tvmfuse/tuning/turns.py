"""Runs several builds of one model in turns, in a process of its own.

Run as ``python -m tvmfuse.tuning.turns PARENT``; it speaks as :mod:`tvmfuse.tuning.worker` does.
``{"run": {...}}`` times whole inferences, ``{"kernels": {...}}`` each kernel in its place. All
builds share one pool of threads, so a turn waits for nobody else's to calm down.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse._tvm.failures import FAILURES
from tvmfuse.errors import TvmFuseError
from tvmfuse.passes.codegen import one_line
from tvmfuse.runtime import Session, load
from tvmfuse.runtime.benchmark import take_turns
from tvmfuse.tuning import variants, worker

_FEWEST_ROUNDS, _MOST_ROUNDS = 5, 25


class Turns:
    """Answers requests; the builds of the last one stay loaded."""

    def __init__(self) -> None:
        self._sessions: dict[str, Session] = {}

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what one request asks."""
        try:
            if "run" in request:
                return {"status": "ok", "rounds_us": self._run(**request["run"])}
            return {"status": "ok", "kernels_us": self._kernels(**request["kernels"])}
        except (*FAILURES, TvmFuseError, OSError) as error:
            return {"status": "run_error", "reason": one_line(error)}

    def _run(
        self, *, bundles: Sequence[str], inputs: str, rounds: int, round_us: float
    ) -> list[list[float]]:
        """Return the time of an inference by each build, in each round."""
        feeds = _feeds(inputs)
        sides = {
            path: _Timed(partial(own.run, None, feeds))
            for path, own in self._loaded(bundles).items()
        }
        timings = take_turns(sides, rounds=rounds, round_us=round_us, pause_s=0.0)
        return [list(timings[path].rounds_us) for path in bundles]

    def _kernels(
        self, *, bundles: Sequence[str], inputs: str, seconds: float
    ) -> list[dict[str, list[float]]]:
        """Return the time of each kernel in its place by each build, in each round."""
        feeds, sessions = _feeds(inputs), self._loaded(bundles)
        times = {path: variants.Times() for path in bundles}
        end = time.monotonic() + seconds
        for number in range(_MOST_ROUNDS):
            if number >= _FEWEST_ROUNDS and time.monotonic() > end:
                break
            for path in list(bundles)[:: 1 if number % 2 == 0 else -1]:
                times[path].add_round(sessions[path], feeds)
        return [times[path].kernels_us for path in bundles]

    def _loaded(self, bundles: Sequence[str]) -> dict[str, Session]:
        self._sessions = {path: own for path, own in self._sessions.items() if path in bundles}
        for path in bundles:
            if path not in self._sessions:
                self._sessions[path] = load(path)
        return self._sessions


@dataclass(frozen=True)
class _Timed:
    """What takes turns: a model in this process."""

    call: Callable[[], object]

    def times_us(self, calls: int, *, timeout_s: float) -> list[float]:
        """Run the model some times; a process that hangs is ended by its parent."""
        return [self._time_us() for _ in range(calls)]

    def _time_us(self) -> float:
        start = time.perf_counter_ns()
        self.call()
        return (time.perf_counter_ns() - start) / 1e3


def _feeds(inputs: str) -> dict[str, Any]:
    with np.load(Path(inputs), allow_pickle=False) as file:
        return {name: file[name] for name in file.files}


if __name__ == "__main__":
    worker.main(Turns())

"""A model that is built with some records and without, and timed in turns."""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from types import TracebackType
from typing import Any

import numpy as np

from tvmfuse import _pipeline, bundle
from tvmfuse._pipeline import Options
from tvmfuse.errors import TuningError
from tvmfuse.frontend import Model
from tvmfuse.plan import Tuned
from tvmfuse.runtime.samples import random_inputs
from tvmfuse.store.keys import workload_key
from tvmfuse.targets import Target
from tvmfuse.tuning.process import WorkerLost, WorkerProcess
from tvmfuse.tuning.tuner import Progress

_ROUND_US = 100e3
_IN_PLACE_S = 3.0
_PATIENCE_S = 600.0
_COMMAND = (sys.executable, "-P", "-m", "tvmfuse.tuning.turns")


@dataclass(frozen=True)
class Decided:
    """Records by workload: the ``Records`` of ``plan``, in memory."""

    tuned: Mapping[str, Tuned]

    @classmethod
    def of(cls, kernels: Sequence[Progress]) -> Decided:
        """Return the best of some kernels."""
        return cls({k.task.workload.key: k.best.tuned for k in kernels if k.best is not None})

    def best(self, family: str, kernel: Any) -> Tuned | None:
        """Return what is known of a kernel, or None."""
        return self.tuned.get(workload_key(kernel))


@dataclass
class WholeModel:
    """A model that is compiled with some records and without, and timed in alternation.

    A build that crashes or hangs ends a process of its own, which starts with the first
    timing and ends with the ``with`` block.

    Parameters
    ----------
    model : Model
        The model.
    target : Target
        What it is compiled for.
    folder : Path
        Where its bundles may lie.
    threads : int
        Threads that it may use.
    options : Options
        What it is planned by.
    rounds : int
        Rounds of about a tenth of a second in which both take turns.
    default_us : float, optional
        Time of one inference without any record, as last measured.
    build_s : float
        How long the last build took.
    """

    model: Model
    target: Target
    folder: Path
    threads: int
    options: Options = field(default_factory=Options)
    rounds: int = 9
    default_us: float | None = None
    build_s: float = 0.0
    _bundles: dict[frozenset[str], Path] = field(default_factory=dict)
    _process: WorkerProcess | None = None

    def __enter__(self) -> WholeModel:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._close()

    def ratio(self, old: Sequence[Progress], new: Sequence[Progress]) -> float:
        """Return the time of one inference with the records of ``new`` over that with ``old``.

        Raises
        ------
        TuningError
            One of them could not run.
        """
        theirs, ours = self._times_us(old, new)
        return median(our / their for our, their in zip(ours, theirs, strict=True))

    def time_default(self) -> float:
        """Return the time of one inference without any record, in microseconds.

        Raises
        ------
        TuningError
            It could not run.
        """
        (times,) = self._times_us(())
        return median(times)

    def in_place(self, kernels: Sequence[Progress]) -> dict[str, float]:
        """Return the time of each kernel with its record over that without, in its place.

        All records are used at once, so that it takes one more build, however many they are.

        Returns
        -------
        dict of str to float
            By the key of the workload.

        Raises
        ------
        TuningError
            It could not run, or kernels cannot be timed here.
        """
        asked = {"bundles": self._paths((), kernels), "seconds": _IN_PLACE_S}
        theirs, ours = self._ask("kernels", asked)["kernels_us"]
        return {
            each.task.workload.key: median(
                sum(our) / sum(their)
                for our, their in zip(
                    zip(*(ours[name] for name in each.task.names), strict=True),
                    zip(*(theirs[name] for name in each.task.names), strict=True),
                    strict=True,
                )
            )
            for each in kernels
            if all(name in ours and name in theirs for name in each.task.names)
        }

    def _times_us(self, *sides: Sequence[Progress]) -> list[list[float]]:
        """Return the time of one inference with some records, round by round."""
        rounds = {"rounds": self.rounds, "round_us": _ROUND_US}
        times: list[list[float]] = self._ask("run", {"bundles": self._paths(*sides), **rounds})[
            "rounds_us"
        ]
        for kernels, its in zip(sides, times, strict=True):
            self.default_us = self.default_us if kernels else median(its)
        return times

    def _ask(self, what: str, request: Mapping[str, Any]) -> dict[str, Any]:
        try:
            if self._process is None:
                self._process = WorkerProcess(threads=self.threads, command=_COMMAND)
                self._process.ask(None, timeout_s=_PATIENCE_S)
            asked = {what: {**request, "inputs": str(self._inputs())}}
            answer = self._process.ask(asked, timeout_s=_PATIENCE_S)
        except WorkerLost as lost:
            self._process = None
            raise TuningError(f"tune: the whole model cannot be timed: {lost.reason}") from lost
        if answer["status"] != "ok":
            raise TuningError(f"tune: the whole model cannot be timed: {answer['reason']}")
        return answer

    def _close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None

    def _inputs(self) -> Path:
        inputs = self.folder / "inputs.npz"
        if not inputs.exists():
            np.savez(inputs, **random_inputs(self.model.signature.inputs))  # type: ignore[arg-type]
        return inputs

    def _paths(self, *sides: Sequence[Progress]) -> list[str]:
        return [str(self._bundle(kernels)) for kernels in sides]

    def _bundle(self, kernels: Sequence[Progress]) -> Path:
        names = frozenset(kernel.task.workload.key for kernel in kernels)
        if names not in self._bundles:
            start = time.monotonic()
            options = replace(self.options, records=Decided.of(kernels))
            compiled = _pipeline.build(self.model, self.target, options=options)
            path = self.folder / f"{len(self._bundles)}.tvmfuse"
            self._bundles[names] = bundle.save(compiled, path).path
            self.build_s = time.monotonic() - start
        return self._bundles[names]

"""Replay a record of another TVM, and compare what it computes with the untuned kernel."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm.threads import in_use
from tvmfuse.kernels import families
from tvmfuse.passes.schedule import machine_of
from tvmfuse.plan import Tuned
from tvmfuse.store import keys
from tvmfuse.store.records import to_text
from tvmfuse.targets import Target
from tvmfuse.tuning.measure import Limits, WorkerMeasurer
from tvmfuse.tuning.space import TRACE, Point, Space
from tvmfuse.tuning.task import Task

_LIMITS = Limits(budget_us=0.0, cold=False)  # whether it is right, not how fast


class Verifier:
    """Says whether a record computes a kernel right on this machine.

    Its process starts with the first record, and ends with the ``with`` block. A wrong
    record may crash it, and nothing else.

    Parameters
    ----------
    target : Target
        What kernels are compiled for; where it does not run here, no record is right.
    """

    def __init__(self, target: Target) -> None:
        self._target = target
        self._measure: WorkerMeasurer | None = None

    def __enter__(self) -> Verifier:
        return self

    def __exit__(self, *_: object) -> None:
        if self._measure is not None:
            self._measure.close()

    def __call__(self, kernel: Any, tuned: Tuned) -> bool:
        """Whether ``tuned`` gives what the untuned kernel gives.

        Parameters
        ----------
        kernel : tirx.PrimFunc
            Unscheduled S-TIR.
        tuned : Tuned
            What the record says.
        """
        if self._target.rules != "cpu" or not self._target.runs_here:
            return False
        if self._measure is None:
            machine = machine_of(self._target)
            self._measure = WorkerMeasurer(self._target, machine, threads=in_use(), limits=_LIMITS)
        family = families.family_of(kernel)
        task = Task(("kernel",), family, keys.workload(kernel), 1, 1, Space(()))
        return self._measure(task, _point(tuned)).median_us is not None


def _point(tuned: Tuned) -> Point:
    return tuned.decisions if tuned.trace is None else {TRACE: to_text(list(tuned.trace))}

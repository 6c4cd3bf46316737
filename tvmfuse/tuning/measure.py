"""Measure candidates of kernels, whatever becomes of the process that runs them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any, Protocol

from tvmfuse.errors import TuningError
from tvmfuse.kernels.tiling import Machine
from tvmfuse.plan import Tuned
from tvmfuse.store.records import Status
from tvmfuse.targets import Target
from tvmfuse.tuning.process import WorkerLost, WorkerProcess
from tvmfuse.tuning.space import TRACE, Point
from tvmfuse.tuning.task import Task

# How often a worker may fail to start, and how often somebody may kill one that starts.
_FAILURES, _KILLS = 3, 20


@dataclass(frozen=True)
class Trial:
    """What came of one candidate.

    Parameters
    ----------
    decisions : Mapping
        What was really decided; what was asked for where it got not so far.
    status : str
        As in a record; "measured" where it was right and timed.
    times_us : tuple of float
        Run times in microseconds, one for each round beside the zero-trial kernel.
    reason : str
        Why it failed.
    """

    decisions: Point
    status: Status
    times_us: tuple[float, ...] = ()
    reason: str = ""

    @property
    def median_us(self) -> float | None:
        """Median run time; None where it failed."""
        return median(self.times_us) if self.times_us else None

    @property
    def tuned(self) -> Tuned:
        """What a compile is told to repeat it."""
        text = self.decisions.get(TRACE)
        return Tuned(self.decisions) if text is None else Tuned(trace=json.loads(text))


class Measurer(Protocol):
    """Builds, checks and times one candidate."""

    def __call__(
        self,
        task: Task,
        decisions: Point,
        *,
        default_us: float | None = None,
        best_us: float | None = None,
    ) -> Trial:
        """Return what came of it.

        Parameters
        ----------
        task : Task
            The kernel.
        decisions : Mapping
            The candidate.
        default_us : float, optional
            Time of the zero-trial kernel, where it was measured before: times are relative to it.
        best_us : float, optional
            The best so far: what is hopeless beside it is not timed at length.
        """
        ...


@dataclass(frozen=True)
class Limits:
    """How long things may take.

    Parameters
    ----------
    start_s, load_s, trial_s : float
        To start a worker, to compute what a kernel must give, and to try a candidate.
    budget_us : float
        About how long one candidate is timed, in microseconds.
    cold : bool
        Whether weights are out of the caches at each run, as they are in a model larger than
        these.
    """

    start_s: float = 120.0
    load_s: float = 60.0
    trial_s: float = 15.0
    budget_us: float = 60e3
    cold: bool = True


class WorkerMeasurer:
    """Measures in a worker process, which is replaced when it is lost.

    Parameters
    ----------
    target : Target
        What candidates are compiled for; it must run here.
    machine : Machine
        What schedules may count on.
    threads : int
        Threads that a kernel may use.
    seed : int
        Chooses the arguments.
    limits : Limits
        How long things may take.
    command : tuple of str, optional
        Starts a worker.
    libraries : Path, optional
        A folder that keeps what is built, and where it is found.
    """

    def __init__(
        self,
        target: Target,
        machine: Machine,
        *,
        threads: int,
        seed: int = 0,
        limits: Limits | None = None,
        command: tuple[str, ...] | None = None,
        libraries: Path | None = None,
    ) -> None:
        self._target, self._machine = target, machine
        self._libraries = libraries
        self._limits, self._seed = limits or Limits(), seed
        self._how: dict[str, Any] = {"threads": threads}
        if command is not None:
            self._how["command"] = command
        self._loaded: str | None = None
        self._process: WorkerProcess | None = WorkerProcess(**self._how)
        self._is_ready = False

    def __enter__(self) -> WorkerMeasurer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the worker."""
        if self._process is not None:
            self._process.close()
            self._process = None

    def __call__(
        self,
        task: Task,
        decisions: Point,
        *,
        default_us: float | None = None,
        best_us: float | None = None,
    ) -> Trial:
        """Measure one candidate; see :class:`Measurer`.

        Raises
        ------
        TuningError
            No worker can be started.
        """
        how = {
            "default_us": default_us,
            "best_us": best_us,
            "budget_us": self._limits.budget_us,
            "cold": self._limits.cold,
        }
        answer = self._ask(task, "try", {"decisions": dict(decisions), **how})
        return _trial(answer, decisions)

    def build(self, task: Task, decisions: Point) -> str:
        """Build one candidate for later; return why it failed, or "".

        Raises
        ------
        TuningError
            No worker can be started.
        """
        answer = self._ask(task, "build", {"decisions": dict(decisions)})
        return str(answer.get("reason", ""))

    def _ask(self, task: Task, what: str, request: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return what the worker says of a kernel, or what became of the worker."""
        try:
            process = self._started()
            failure = self._load(process, task)
            if failure is not None:
                return {"status": failure["status"], "reason": failure["reason"]}
            return process.ask({what: request}, timeout_s=self._limits.trial_s)
        except WorkerLost as lost:
            self._process, self._loaded, self._is_ready = None, None, False
            return {"status": lost.status, "reason": lost.reason}

    def _started(self) -> WorkerProcess:
        failures = kills = 0
        while self._process is None or not self._is_ready:
            self._process = self._process or WorkerProcess(**self._how)
            try:
                self._process.ask(None, timeout_s=self._limits.start_s)
                self._is_ready = True
            except WorkerLost as lost:
                self._process = None
                kills += lost.is_killed
                failures += not lost.is_killed
                if failures == _FAILURES or kills == _KILLS:
                    raise TuningError(f"tune: a worker cannot be started: {lost.reason}") from lost
        return self._process

    def _load(self, process: WorkerProcess, task: Task) -> Mapping[str, Any] | None:
        """Make a kernel the present one; return an answer that says why it cannot be."""
        if self._loaded == task.workload.key:
            return None
        self._loaded = None
        request = {
            "module": task.workload.module,
            "family": task.family,
            "machine": asdict(self._machine),
            "target": dict(self._target.attrs),
            "seed": self._seed,
            "libraries": None if self._libraries is None else str(self._libraries),
        }
        answer = process.ask({"load": request}, timeout_s=self._limits.load_s)
        if answer["status"] != "ok":
            return answer
        self._loaded = task.workload.key
        return None


def _trial(answer: Mapping[str, Any], asked: Point) -> Trial:
    decisions = answer.get("decisions", asked)
    if answer["status"] != "ok":
        return Trial(decisions, _status(answer["status"]), reason=str(answer.get("reason", "")))
    times = tuple(float(time) for time in answer["times_us"])
    if not times or any(not math.isfinite(time) or time <= 0 for time in times):
        said = f"run times must be above 0 and finite, but the worker said {list(times)}"
        return Trial(decisions, "run_error", reason=said)
    return Trial(decisions, "measured", times)


def _status(text: str) -> Status:
    known: Mapping[str, Status] = {
        "build_error": "build_error",
        "timeout": "timeout",
        "wrong": "wrong",
        "crash": "crash",
    }
    return known.get(text, "run_error")

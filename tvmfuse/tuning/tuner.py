"""Spend trials where a whole model gains most."""

from __future__ import annotations

import math
import time
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvmfuse.tuning.budget import Budget
from tvmfuse.tuning.history import History
from tvmfuse.tuning.measure import Measurer, Trial
from tvmfuse.tuning.metaschedule import TraceSearch
from tvmfuse.tuning.space import key
from tvmfuse.tuning.strategy import Search
from tvmfuse.tuning.task import Task

_BATCH = 6
_FIRST_HOPE = 0.3  # share of its time that an unexplored kernel is thought to save
_FIRST_TRUST = 0.5  # in what a search's model promises
_LOST_TRUST = 0.3  # what is left of it after a promise of which nothing was kept
_NOISE = 0.02  # a smaller gain than this is none


@dataclass(frozen=True)
class Status:
    """Where a search stands.

    Parameters
    ----------
    trials, failures : int
        Candidates measured, and those of them that failed.
    seconds : float
        Since the search began.
    default_us, best_us : float
        Time of all tuned kernels in one inference: by default, and by the best so far.
    kernel : str
        What was just measured.
    first_s : float
        When the first candidate had been measured.
    spent : float
        Share of the budget that is spent, from 0 to 1; 0 where it has no end.
    model_us : float, optional
        Time of one inference of the whole model by the best so far, where that is known.
    """

    trials: int
    failures: int
    seconds: float
    default_us: float
    best_us: float
    kernel: str
    first_s: float
    spent: float = 0.0
    model_us: float | None = None


@dataclass
class Progress:
    """The search of one kernel.

    Parameters
    ----------
    task : Task
        The kernel.
    search : Search
        Its space.
    trials : list of Trial
        What was measured in this run.
    default, best : Trial, optional
        The zero-trial kernel, and the fastest.
    hope : float
        Share of its best time that the next batch may save.
    promised : float
        Share that the search's model said so.
    trust : float
        How far the model is believed: less with each batch that did not keep what it promised,
        as a model that is wrong about a large space may be wrong for ever.
    """

    task: Task
    search: Search | TraceSearch
    trials: list[Trial] = field(default_factory=list)
    default: Trial | None = None
    best: Trial | None = None
    hope: float = _FIRST_HOPE
    promised: float = 0.0
    trust: float = _FIRST_TRUST

    @property
    def expected_us(self) -> float:
        """What the next batch may save in one inference, in microseconds."""
        if self.default is None:
            return float("inf")
        return 0.0 if self.search.is_exhausted else self.task.uses * self.best_us * self.hope

    @property
    def best_us(self) -> float:
        """Time of the fastest candidate; 0 where none was right."""
        return (self.best.median_us or 0.0) if self.best else 0.0

    @property
    def measured_us(self) -> float | None:
        """Time of the zero-trial kernel; None where it has none."""
        return self.default.median_us if self.default else None

    @property
    def default_us(self) -> float:
        """Time of the zero-trial kernel; that of the fastest where it failed."""
        return self.measured_us or self.best_us

    @property
    def gain_us(self) -> float:
        """What the fastest saves in one inference, in microseconds."""
        return self.task.uses * (self.default_us - self.best_us)

    @property
    def has_gain(self) -> bool:
        """Whether the fastest candidate beats the zero-trial kernel beyond noise."""
        return self.best_us < (1 - _NOISE) * self.default_us

    def take(self, trial: Trial) -> None:
        """Take note of a trial."""
        self.default = self.default or trial
        if trial.median_us and (self.best is None or trial.median_us < self.best_us):
            self.best = trial

    def learn(self, before_us: float) -> None:
        """Judge what the next batch may save by the last one, which began at ``before_us``."""
        gained = 1.0 - self.best_us / before_us
        if self.promised > _NOISE:
            kept = _FIRST_TRUST * min(1.0, gained / self.promised)
            self.trust = max(kept, _LOST_TRUST * self.trust)
        self.promised = self.search.potential()
        self.hope = self.trust * self.promised + max(gained, 0.25 * self.hope)


class Tuner:
    """Searches the kernels of one model.

    Parameters
    ----------
    tasks : sequence of Task
        The kernels.
    measure : Measurer
        Tries one candidate.
    history : History
        Keeps each trial as soon as it is measured.
    seed : int
        Chooses what is drawn. The same seed and times give the same trials.
    resume : bool
        Whether what was measured before is not measured again.
    target : tvm.target.Target, optional
        What kernels are compiled for; needed to search TVM's own spaces.
    """

    def __init__(
        self,
        tasks: Sequence[Task],
        measure: Measurer,
        history: History,
        *,
        seed: int = 0,
        resume: bool = False,
        target: Any = None,
    ) -> None:
        self._measure, self._history, self._resume = measure, history, resume
        self._target = target
        self.kernels = [self._begin(task, seed) for task in tasks]
        self._trials = self._failures = 0
        self._first_s = 0.0
        self._start: float | None = None

    def run(
        self,
        budget: Budget,
        report: Callable[[Status], None] = lambda _: None,
        *,
        once: bool = False,
    ) -> None:
        """Search until the budget is spent or nothing is left.

        What was found stands in :attr:`kernels`, also after an interruption. It may go on with
        another budget: trials and seconds count from its first beginning.

        Parameters
        ----------
        budget : Budget
            When to stop.
        report : callable
            Is told where the search stands after each trial.
        once : bool
            Whether to stop when each kernel has been measured once.
        """
        self._start = self._start or time.monotonic()
        while not (self.is_done(budget) or (once and self.is_begun)):
            kernel = max(self.kernels, key=lambda each: each.expected_us)
            for trial in self._batch(kernel, budget):
                self._note(kernel, trial)
                report(replace(self.status(kernel), spent=self._spent(budget)))

    @property
    def is_begun(self) -> bool:
        """Whether each kernel has been measured once."""
        return all(each.default is not None for each in self.kernels)

    @property
    def seconds(self) -> float:
        """Time since the search began."""
        return 0.0 if self._start is None else time.monotonic() - self._start

    def status(self, kernel: Progress | None = None) -> Status:
        """Return where the search stands."""
        return Status(
            trials=self._trials,
            failures=self._failures,
            seconds=self.seconds,
            default_us=sum(each.task.uses * each.default_us for each in self.kernels),
            best_us=sum(each.task.uses * each.best_us for each in self.kernels),
            kernel=kernel.task.name if kernel else "",
            first_s=self._first_s,
        )

    def duel(self, kernel: Progress) -> None:
        """Measure the best beside the default once more: of many trials some are lucky."""
        if kernel.default is None or kernel.best is None:
            return
        again = self._measure(kernel.task, kernel.best.decisions, default_us=kernel.measured_us)
        self._history.commit(kernel.task, again)
        kernel.best = _faster(again, kernel.default)

    def _begin(self, task: Task, seed: int) -> Progress:
        # By the kernel's key, so that a search does not depend on the rest of the model.
        own_seed = zlib.crc32(f"{seed} {task.workload.key}".encode())
        search: Search | TraceSearch
        if task.by_trace:
            module, target = task.workload.module, self._target
            search = TraceSearch(module, target, task.space.default, seed=own_seed)
        else:
            search = Search(task.space, seed=own_seed, prior=self._history.similar(task))
        kernel = Progress(task, search)
        if self._resume:
            for trial in self._history.past(task):
                search.observe(trial.decisions, trial.median_us)
                if key(trial.decisions) == key(task.space.default) or kernel.default:
                    kernel.take(trial)
            if len(search.costs) >= _BATCH:  # what was hoped for then has been tried
                kernel.promised = search.potential()
                kernel.hope = kernel.trust * kernel.promised
        return kernel

    def _batch(self, kernel: Progress, budget: Budget) -> Iterator[Trial]:
        before_us = kernel.best_us
        for point in kernel.search.propose(_BATCH):
            if self._is_spent(budget):
                return
            times = {"default_us": kernel.measured_us, "best_us": kernel.best_us or None}
            trial = self._measure(kernel.task, point, **times)
            self._history.commit(kernel.task, trial)
            kernel.search.observe(trial.decisions, trial.median_us, asked=point)
            kernel.take(trial)
            yield trial
        if before_us:
            kernel.learn(before_us)

    def _note(self, kernel: Progress, trial: Trial) -> None:
        kernel.trials.append(trial)
        self._trials += 1
        self._failures += trial.median_us is None
        self._first_s = self._first_s or self.seconds

    def is_done(self, budget: Budget) -> bool:
        """Whether a budget is spent, or nothing is left that would be worth it."""
        if self._is_spent(budget) or all(each.expected_us <= 0 for each in self.kernels):
            return True
        if budget.within is None or not self.is_begun:
            return False
        total_us = sum(each.task.uses * each.best_us for each in self.kernels)
        return sum(each.expected_us for each in self.kernels) < budget.within * total_us

    def _is_spent(self, budget: Budget) -> bool:
        return self._spent(budget) >= 1.0

    def _spent(self, budget: Budget) -> float:
        """Return the share of a budget that is spent."""
        shares = [0.0]
        if budget.trials is not None:
            shares.append(self._trials / budget.trials)
        if budget.seconds is not None:
            shares.append(self.seconds / budget.seconds if budget.seconds > 0 else 1.0)
        return max(shares)


def _faster(first: Trial, second: Trial) -> Trial:
    """Return the faster of two trials; a failed one is the slowest of all."""
    return min(first, second, key=lambda trial: trial.median_us or math.inf)

"""Tune a model: search its kernels, confirm the winners in the whole, keep everything."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

from tvmfuse import _pipeline
from tvmfuse._tvm.threads import in_use as usable_threads
from tvmfuse.errors import TuningError
from tvmfuse.frontend import Model
from tvmfuse.passes.schedule import machine_of
from tvmfuse.plan import CostModel
from tvmfuse.targets import Target
from tvmfuse.tuning.budget import Budget
from tvmfuse.tuning.confirm import WholeModel, confirm
from tvmfuse.tuning.history import History
from tvmfuse.tuning.measure import Limits, Measurer, WorkerMeasurer
from tvmfuse.tuning.reports import KernelReport, Report
from tvmfuse.tuning.scratch import scratch
from tvmfuse.tuning.task import Strategy, Task, tasks_of
from tvmfuse.tuning.tuner import Progress, Status, Tuner

_CONFIRMING = 0.3  # share of the time that is kept for timing the whole model, at most
_DUELLING = 0.3  # share of that time in which winners are measured again, alone
_DUELS = 2


@dataclass(frozen=True)
class Settings:
    """How a model is tuned.

    Parameters
    ----------
    budget : Budget
        When to stop; its seconds hold for all of it.
    seed : int
        Chooses candidates and arguments.
    resume : bool
        Whether what was measured before is not measured again.
    limits : Limits
        How long single steps may take.
    strategy : str
        Which spaces are searched: "auto", "families" or "metaschedule".
    """

    budget: Budget = field(default_factory=Budget)
    seed: int = 0
    resume: bool = False
    limits: Limits = field(default_factory=Limits)
    strategy: Strategy = "auto"


Say = Callable[[str], None]


def tune_model(
    model: Model,
    target: Target,
    history: History,
    *,
    settings: Settings | None = None,
    cost_model: CostModel | None = None,
    stage: Say = lambda _: None,
    progress: Callable[[Status], None] = lambda _: None,
) -> Report:
    """Tune the kernels of a model on this machine.

    Parameters
    ----------
    model : Model
        What the frontend made.
    target : Target
        A CPU target that runs here.
    history : History
        Keeps the trials.
    settings : Settings, optional
        Budget, seed and limits.
    cost_model : CostModel, optional
        What a compile will plan by; the model of the device's family where not given.
    stage, progress : callable
        Are told what begins, and how the search goes on after each trial.

    Raises
    ------
    TuningError
        The target does not run here, or no worker can be started.
    LoweringError
        The model cannot be compiled.
    """
    if target.rules != "cpu" or not target.runs_here:
        raise TuningError(
            f"tune: the target must be a CPU that is this machine, but {target.spec} is not; "
            "use --target cpu here, or tune on the device itself"
        )
    settings = settings or Settings()
    start = time.monotonic()
    machine, threads = machine_of(target), usable_threads()
    with (
        WorkerMeasurer(
            target, machine, threads=threads, seed=settings.seed, limits=settings.limits
        ) as measure,  # started first: it loads TVM while the model is prepared
        scratch() as folder,
    ):
        stage("plan")
        options = _pipeline.Options(cost_model=cost_model)
        prepared = _pipeline.prepare(model.module, target, options=options)
        tasks = tasks_of(prepared, machine, seed=settings.seed, strategy=settings.strategy)
        prepared_s = time.monotonic() - start
        whole = WholeModel(model, target, folder, threads, options=options)
        stage(f"search {len(tasks)} kernels")
        tuner, winners = _search(
            tasks,
            target,
            measure,
            history,
            settings,
            progress=EndToEnd(whole, settings.budget, progress, len(tasks)),
            used_s=prepared_s,
        )
        measure.close()  # nothing else runs while the whole model is timed
        stage(f"confirm {len(winners)} kernels in the model")
        is_over = _deadline(settings.budget, start)
        confirmed = confirm(winners, whole.ratio, is_over=is_over)
        kept = confirmed.kept
        _keep(tuner.kernels, kept, history, untried=confirmed.untried)
    return Report(
        status=tuner.status(),
        kernels=tuple(_reported(kernel, kept) for kernel in tuner.kernels),
        default_us=whole.times_us.get(frozenset()),
        tuned_us=whole.times_us.get(frozenset(k.task.workload.key for k in kept)),
        first_s=prepared_s + tuner.status().first_s,
        seconds=time.monotonic() - start,
        untried=tuple(kernel.task.name for kernel in confirmed.untried),
    )


@dataclass
class EndToEnd:
    """Tells how long an inference takes by the best so far.

    The whole model is timed once, when each kernel has been, and each kernel's gain is taken off.
    """

    whole: WholeModel
    budget: Budget
    progress: Callable[[Status], None]
    n_kernels: int = 1
    default_us: float | None = None
    is_timed: bool = False

    def __call__(self, status: Status) -> None:
        """Hand a status on, with the time of the whole model."""
        if self.default_us is not None:
            model_us = self.default_us - (status.default_us - status.best_us)
            status = replace(status, model_us=max(0.0, model_us))
        self.progress(status)
        if not self.is_timed and status.trials >= self.n_kernels and _is_long(self.budget):
            self.is_timed = True
            with suppress(TuningError):  # it is for the eye alone
                self.default_us = self.whole.time_default()


_LONG_S, _LONG_TRIALS = 120.0, 50


def _is_long(budget: Budget) -> bool:
    """Whether somebody may watch: compiling the model for the eye takes a few seconds."""
    limits = ((budget.seconds, _LONG_S), (budget.trials, _LONG_TRIALS))
    return all(given is None or given >= long for given, long in limits)


def _search(
    tasks: tuple[Task, ...],
    target: Target,
    measure: Measurer,
    history: History,
    settings: Settings,
    *,
    progress: Callable[[Status], None],
    used_s: float,
) -> tuple[Tuner, list[Progress]]:
    """Search within what the budget leaves, and return the kernels that gained."""
    how = {"seed": settings.seed, "resume": settings.resume, "target": target.tvm()}
    tuner = Tuner(tasks, measure, history, **how)
    budget, end = settings.budget, math.inf
    if budget.seconds is not None:
        # Confirming compiles the model at least twice, which takes as long as preparing did.
        kept_s = min(_CONFIRMING * budget.seconds, 10.0 + 4.0 * used_s)
        budget = replace(budget, seconds=max(0.0, budget.seconds - used_s - kept_s))
        end = time.monotonic() + (budget.seconds or 0.0) + _DUELLING * kept_s
    tuner.run(budget, progress)
    for kernel in sorted(tuner.kernels, key=lambda each: each.gain_us, reverse=True):
        for _ in range(_DUELS if kernel.has_gain else 0):
            if time.monotonic() < end:
                tuner.duel(kernel)
    return tuner, [kernel for kernel in tuner.kernels if kernel.has_gain]


def _keep(
    kernels: list[Progress],
    kept: list[Progress],
    history: History,
    *,
    untried: list[Progress],
) -> None:
    """Mark what is best: the records that helped, and defaults that a whole search did not beat."""
    for kernel in kernels:
        if kernel in kept and kernel.best is not None:
            history.commit(kernel.task, kernel.best, is_best=True)
        elif kernel not in untried and kernel.default is not None and _is_searched(kernel):
            history.commit(kernel.task, kernel.default, is_best=True)


_ENOUGH_TRIALS = 12


def _is_searched(kernel: Progress) -> bool:
    is_right = kernel.default is not None and bool(kernel.default.times_us)
    return is_right and (kernel.search.is_exhausted or len(kernel.search.costs) >= _ENOUGH_TRIALS)


def _deadline(budget: Budget, start: float) -> Callable[[], bool]:
    return lambda: budget.seconds is not None and time.monotonic() - start > budget.seconds


def _reported(kernel: Progress, kept: list[Progress]) -> KernelReport:
    return KernelReport(
        name=kernel.task.name,
        family=kernel.task.family,
        uses=kernel.task.uses,
        points=kernel.task.space.size,
        trials=len(kernel.trials),
        failures=sum(trial.median_us is None for trial in kernel.trials),
        default_us=kernel.default_us,
        best_us=kernel.best_us,
        decisions=dict(kernel.best.decisions) if kernel.best else {},
        is_kept=kernel in kept,
        is_searched=_is_searched(kernel),
    )

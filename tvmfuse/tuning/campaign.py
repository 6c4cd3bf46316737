"""Tune a model: search its kernels, confirm the winners in the whole, keep everything."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from tvmfuse import _pipeline
from tvmfuse._tvm.threads import in_use as usable_threads
from tvmfuse.errors import TuningError
from tvmfuse.frontend import Model
from tvmfuse.passes.schedule import machine_of
from tvmfuse.plan import CostModel
from tvmfuse.targets import Target
from tvmfuse.tuning.budget import Budget
from tvmfuse.tuning.confirm import Confirmed, confirm
from tvmfuse.tuning.history import History
from tvmfuse.tuning.measure import Limits, WorkerMeasurer
from tvmfuse.tuning.reports import KernelReport, Report
from tvmfuse.tuning.scratch import scratch
from tvmfuse.tuning.task import Strategy, tasks_of
from tvmfuse.tuning.tuner import Progress, Status, Tuner
from tvmfuse.tuning.whole_model import WholeModel


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
    options = _pipeline.Options(cost_model=cost_model)
    with (
        WorkerMeasurer(
            target, machine, threads=threads, seed=settings.seed, limits=settings.limits
        ) as measure,  # started first: it loads TVM while the model is prepared
        scratch() as folder,
        WholeModel(model, target, folder, threads, options=options) as whole,
    ):
        stage("plan")
        prepared = _pipeline.prepare(model.module, target, options=options)
        tasks = tasks_of(prepared, machine, seed=settings.seed, strategy=settings.strategy)
        how = {"seed": settings.seed, "resume": settings.resume, "target": target.tvm()}
        tuner = Tuner(tasks, measure, history, **how)
        prepared_s = time.monotonic() - start
        watch = EndToEnd(progress)
        _search(tuner, whole, watch, budget=settings.budget, used_s=prepared_s, stage=stage)
        winners = _winners(tuner, settings.budget, start, build_s=whole.build_s or prepared_s)
        measure.close()  # nothing else runs while the whole model is timed
        stage(f"confirm {_counted(len(winners))} in the model")
        is_over = _deadline(settings.budget, start, kept_s=whole.build_s)
        confirmed = confirm(winners, whole.ratio, whole.in_place, is_over=is_over)
        _keep(tuner.kernels, confirmed, history)
    default_us = whole.default_us
    return Report(
        status=tuner.status(),
        kernels=tuple(_reported(kernel, confirmed.kept) for kernel in tuner.kernels),
        default_us=default_us,
        tuned_us=None if default_us is None else confirmed.ratio * default_us,
        first_s=prepared_s + tuner.status().first_s,
        seconds=time.monotonic() - start,
        untried=tuple(kernel.task.name for kernel in confirmed.untried),
    )


@dataclass
class EndToEnd:
    """Tells how long an inference takes by the best so far, once the model has been timed."""

    progress: Callable[[Status], None]
    default_us: float | None = None

    def __call__(self, status: Status) -> None:
        """Hand a status on, with the time of the whole model: each kernel's gain is taken off."""
        if self.default_us is not None:
            model_us = self.default_us - (status.default_us - status.best_us)
            status = replace(status, model_us=max(0.0, model_us))
        self.progress(status)


def _search(
    tuner: Tuner,
    whole: WholeModel,
    watch: EndToEnd,
    *,
    budget: Budget,
    used_s: float,
    stage: Say,
) -> None:
    """Measure each kernel once, then the whole model, then what may gain most.

    The whole model is built without any record for the comparison at the end; how long that
    takes says how much time must be kept for it.
    """
    stage(f"search {_counted(len(tuner.kernels))}")
    tuner.run(_part(budget, used_s, kept_s=2.0 * used_s), watch, once=True)
    if tuner.is_done(budget) or (budget.trials is not None and budget.trials < _MANY_TRIALS):
        rest = _part(budget, used_s, kept_s=2.0 * used_s)
    else:
        stage("time the model as it is")
        with suppress(TuningError):  # it is told again where it matters
            watch.default_us = whole.time_default()
        rest = _part(budget, used_s, kept_s=2.0 * whole.build_s + _TIMING_S)
        stage("search on")
    tuner.run(rest, watch)


_MANY_TRIALS = 50  # of fewer, building the model twice would be most of the work
_TIMING_S = 8.0  # what timing the model and its kernels takes, where these are not large
_CONFIRMING = 0.4  # share of the time that may be kept for that, at most
_DUELLING_S, _DUELS = 3.0, 2


def _part(budget: Budget, used_s: float, *, kept_s: float) -> Budget:
    """Return what searching may use of a budget."""
    if budget.seconds is None:
        return budget
    kept_s = min(_CONFIRMING * budget.seconds, kept_s)
    return replace(budget, seconds=max(0.0, budget.seconds - used_s - kept_s))


def _winners(tuner: Tuner, budget: Budget, start: float, *, build_s: float) -> list[Progress]:
    """Return the kernels that gained, and gain again when they are measured once more."""
    is_over = _deadline(budget, start, kept_s=2.0 * build_s)
    end = time.monotonic() + _DUELLING_S
    for kernel in sorted(tuner.kernels, key=lambda each: each.gain_us, reverse=True):
        for _ in range(_DUELS if kernel.has_gain else 0):
            if budget.seconds is None or (time.monotonic() < end and not is_over()):
                tuner.duel(kernel)
    return [kernel for kernel in tuner.kernels if kernel.has_gain]


def _keep(kernels: list[Progress], confirmed: Confirmed, history: History) -> None:
    """Mark what is best: the records that helped, and defaults that a whole search did not beat."""
    for kernel in kernels:
        if kernel in confirmed.kept and kernel.best is not None:
            history.commit(kernel.task, kernel.best, is_best=True)
        elif kernel not in confirmed.untried and kernel.default and _is_searched(kernel):
            history.commit(kernel.task, kernel.default, is_best=True)


_ENOUGH_TRIALS = 12


def _is_searched(kernel: Progress) -> bool:
    is_right = kernel.default is not None and bool(kernel.default.times_us)
    return is_right and (kernel.search.is_exhausted or len(kernel.search.costs) >= _ENOUGH_TRIALS)


def _deadline(budget: Budget, start: float, *, kept_s: float) -> Callable[[], bool]:
    """Return what tells whether less than ``kept_s`` seconds of a budget are left."""
    if budget.seconds is None:
        return lambda: False
    end = start + budget.seconds - kept_s
    return lambda: time.monotonic() > end


def _counted(n_kernels: int) -> str:
    return "1 kernel" if n_kernels == 1 else f"{n_kernels} kernels"


def _changed(kernel: Progress) -> dict[str, Any]:
    """Return what the fastest decides otherwise than the zero-trial kernel."""
    if kernel.best is None or kernel.default is None:
        return {}
    default = kernel.default.decisions
    return {name: v for name, v in kernel.best.decisions.items() if default.get(name) != v}


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
        changed=_changed(kernel),
        is_kept=kernel in kept,
        is_searched=_is_searched(kernel),
    )

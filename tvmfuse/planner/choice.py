"""From candidates to a plan, with one reason for everything left out."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from tvmfuse.errors import CostModelError, PlanMismatchError
from tvmfuse.plan import (
    Candidate,
    CostModel,
    FunctionGraph,
    FusionPlan,
    Group,
    Measure,
    Rejection,
    RunTime,
)
from tvmfuse.planner.cycles import Dependencies
from tvmfuse.planner.search import best

# A gain below this part of the unfused time is within the model's error.
_MODEL_ERROR = 0.25

_UNPROVEN = " (chosen greedily: too many candidates overlap for an exact choice)"


@dataclass(frozen=True)
class _Priced:
    """A candidate with its run time and where that comes from."""

    candidate: Candidate
    time: RunTime
    source: str = "predicted"


def choose(
    graphs: Mapping[str, FunctionGraph],
    candidates: Sequence[Candidate],
    model: CostModel,
    *,
    measure: Measure | None = None,
    budget_us: float = 0.0,
) -> FusionPlan:
    """Choose the candidates that together save the most time.

    The chosen ones share no binding, and contracting each to one node leaves every
    function's dependency graph without a cycle.

    Parameters
    ----------
    graphs : Mapping of str to FunctionGraph
        Dependencies of every function that has candidates, by its name.
    candidates : Sequence[Candidate]
        Every legal match in one module, overlapping ones included. Where two save
        the same time, the earlier is taken.
    model : CostModel
        Predicts the run time of a candidate fused and unfused, in microseconds.
    measure : Measure, optional
        Measures candidates whose predicted gain is within the model's error.
    budget_us : float
        Time that measuring may take; 0 measures none.

    Returns
    -------
    FusionPlan
        The choice, with one reason for every candidate not chosen. It never takes
        longer than no fusion under the same times.

    Raises
    ------
    PlanMismatchError
        A candidate names a function or a binding that is not in ``graphs``.
    CostModelError
        The model predicted a time that is not finite.
    """
    for candidate in candidates:
        _check(candidate, graphs)
    priced = [_price(candidate, model) for candidate in candidates]
    if measure is not None and budget_us > 0:
        priced = _measure_doubtful(priced, measure, budget_us)
    reasons: list[str | None] = [None] * len(priced)
    for function, graph in graphs.items():
        at = [i for i, item in enumerate(priced) if item.candidate.function == function]
        for i, reason in zip(at, _reasons([priced[i] for i in at], graph), strict=True):
            reasons[i] = reason
    return _plan(priced, reasons)


def _check(candidate: Candidate, graphs: Mapping[str, FunctionGraph]) -> None:
    graph = graphs.get(candidate.function)
    n_bindings = len(graph.deps) if graph else 0
    if candidate.bindings and candidate.bindings[0] >= 0 and candidate.bindings[-1] < n_bindings:
        return
    raise PlanMismatchError(
        f"planner: candidate {candidate.label!r} of pattern {candidate.pattern!r} needs bindings "
        f"{candidate.bindings} of function {candidate.function!r}, which has {n_bindings}; "
        "collect the candidates and the dependency graphs from the same module"
    )


def _price(candidate: Candidate, model: CostModel) -> _Priced:
    run_time = model.predict(candidate)
    if not math.isfinite(run_time.saved_us):
        raise CostModelError(
            f"planner: cost model {type(model).__name__} must predict finite times, but gave "
            f"{run_time} for {candidate.label!r}; use the roofline model or retrain"
        )
    return _Priced(candidate, run_time)


def _measure_doubtful(
    priced: Sequence[_Priced], measure: Measure, budget_us: float
) -> list[_Priced]:
    """Replace doubtful predictions by measurements, largest kernels first."""
    doubtful = [
        i
        for i, item in enumerate(priced)
        if abs(item.time.saved_us) < _MODEL_ERROR * item.time.unfused_us
    ]
    measured = list(priced)
    end = time.perf_counter() + budget_us / 1e6
    for i in sorted(doubtful, key=lambda i: (-priced[i].time.unfused_us, i)):
        if time.perf_counter() >= end:
            break
        run_time = measure(priced[i].candidate)
        if run_time is not None:
            measured[i] = replace(priced[i], time=run_time, source="measured")
    return measured


def _reasons(priced: Sequence[_Priced], graph: FunctionGraph) -> list[str | None]:
    """Return for each candidate of one function why it is not used; None if it is."""
    dependencies = Dependencies(graph)
    reasons = [_refusal(item, dependencies, graph) for item in priced]
    open_ = [i for i, reason in enumerate(reasons) if reason is None]
    selection = best(
        [priced[i].candidate.bindings for i in open_],
        [priced[i].time.saved_us for i in open_],
        dependencies,
    )
    chosen = [priced[open_[i]] for i in sorted(selection.chosen)]
    owner = {binding: item for item in chosen for binding in item.candidate.bindings}
    for i, at in enumerate(open_):
        if i not in selection.chosen:
            note = _UNPROVEN if i in selection.unproven else ""
            reasons[at] = _defeat(priced[at], owner, dependencies) + note
    return reasons


def _refusal(item: _Priced, dependencies: Dependencies, graph: FunctionGraph) -> str | None:
    """Return why a candidate is not worth or not able to be a group at all."""
    if item.time.saved_us <= 0:
        fused, apart = _us(item.time.fused_us), _us(item.time.unfused_us)
        return f"{item.source} {fused} fused against {apart} apart"
    back = dependencies.way_back(item.candidate.bindings)
    if back is not None:
        label = graph.labels[back] if graph.labels else f"binding {back}"
        return f"a value leaves it and comes back through {label}, which would close a cycle"
    return None


def _defeat(item: _Priced, owner: Mapping[int, _Priced], dependencies: Dependencies) -> str:
    """Return which chosen groups keep a profitable candidate out."""
    winners = list(dict.fromkeys(owner[b] for b in item.candidate.bindings if b in owner))
    if winners:
        saved = sum(winner.time.saved_us for winner in winners)
        return (
            f"its operators go to {_names(winners)}, saving {_us(saved)}; "
            f"this would save {_us(item.time.saved_us)}"
        )
    chosen = list(dict.fromkeys(owner.values()))
    groups = [other.candidate.bindings for other in chosen]
    cycles = dependencies.cycles([*groups, item.candidate.bindings])
    others = {hop.group for cycle in cycles for hop in cycle} - {len(groups)}
    return f"would close a cycle with {_names([chosen[i] for i in sorted(others)])}"


def _names(items: Sequence[_Priced]) -> str:
    shown = [f"{item.candidate.label} [{item.candidate.pattern}]" for item in items[:3]]
    more = len(items) - len(shown)
    return " and ".join(shown) + (f" and {more} more" if more else "")


def _us(value: float) -> str:
    return f"{value:.1f} µs" if value >= 10 else f"{value:.2f} µs"


def _plan(priced: Sequence[_Priced], reasons: Sequence[str | None]) -> FusionPlan:
    groups = [
        Group(item.candidate, item.time)
        for item, reason in zip(priced, reasons, strict=True)
        if reason is None
    ]
    return FusionPlan(
        groups=tuple(sorted(groups, key=lambda g: (g.candidate.function, g.candidate.bindings))),
        rejections=tuple(
            Rejection(
                item.candidate.pattern,
                item.candidate.function,
                item.candidate.bindings,
                "plan",
                reason,
            )
            for item, reason in zip(priced, reasons, strict=True)
            if reason is not None
        ),
    )

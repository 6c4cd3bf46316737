"""From candidates to a plan, with one reason for everything left out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tvmfuse.errors import MemoryLimitError, PlanMismatchError
from tvmfuse.plan import (
    Candidate,
    CostModel,
    FunctionGraph,
    FusionPlan,
    Group,
    Measure,
    Rejection,
)
from tvmfuse.planner.cycles import Dependencies
from tvmfuse.planner.pricing import Priced, measure_doubtful, price
from tvmfuse.planner.problem import Problem
from tvmfuse.planner.search import best
from tvmfuse.planner.selection import Selection
from tvmfuse.planner.strategies import STRATEGIES, Strategy

_UNPROVEN = " (not proven: too many candidates overlap for an exact choice)"


def choose(
    graphs: Mapping[str, FunctionGraph],
    candidates: Sequence[Candidate],
    model: CostModel,
    *,
    strategy: Strategy = best,
    measure: Measure | None = None,
    budget_us: float = 0.0,
    max_memory_bytes: int | None = None,
) -> FusionPlan:
    """Choose the candidates that together save the most time.

    The chosen ones provide no binding twice, and contracting each to one node leaves
    every function's dependency graph without a cycle.

    Parameters
    ----------
    graphs : Mapping of str to FunctionGraph
        Dependencies of every function that has candidates, by its name.
    candidates : Sequence[Candidate]
        Every legal match in one module, overlapping ones included. Where two save
        the same time, the earlier is taken.
    model : CostModel
        Predicts the run time of a candidate fused and unfused, in microseconds.
    strategy : Strategy
        How to choose, see :data:`tvmfuse.planner.STRATEGIES`.
    measure : Measure, optional
        Measures candidates whose predicted gain is in doubt.
    budget_us : float
        Time that measuring may take; 0 measures none.
    max_memory_bytes : int, optional
        What the values between the kernels of a function may take at any time.

    Returns
    -------
    FusionPlan
        The choice, with one reason for every candidate not chosen. The optimal one never
        takes longer than no fusion under the same times.

    Raises
    ------
    PlanMismatchError
        A candidate names a function or a binding that is not in ``graphs``.
    CostModelError
        The model predicted a time that is not finite.
    MemoryLimitError
        No plan was found that needs so little memory.
    """
    for candidate in candidates:
        _check(candidate, graphs)
    priced = price(candidates, model)
    if measure is not None and budget_us > 0:
        priced = measure_doubtful(priced, measure, budget_us)
    name = next((name for name, known in STRATEGIES.items() if known is strategy), "custom")
    reasons: list[str | None] = [None] * len(priced)
    gap_us = 0.0
    for function, graph in graphs.items():
        at = [i for i, item in enumerate(priced) if item.candidate.function == function]
        function_choice = _Choice([priced[i] for i in at], graph, strategy, max_memory_bytes)
        gap_us += function_choice.gap_us
        for i, reason in zip(at, function_choice.reasons, strict=True):
            reasons[i] = reason
    return _plan(priced, reasons, planner=name, gap_us=gap_us)


def _check(candidate: Candidate, graphs: Mapping[str, FunctionGraph]) -> None:
    graph = graphs.get(candidate.function)
    n_bindings = len(graph.deps) if graph else 0
    # Bindings stand in order, so the first and the last speak for all.
    if candidate.bindings and candidate.bindings[0] >= 0 and candidate.bindings[-1] < n_bindings:
        return
    raise PlanMismatchError(
        f"planner: candidate {candidate.label!r} of pattern {candidate.pattern!r} needs bindings "
        f"{candidate.bindings} of function {candidate.function!r}, which has {n_bindings}; "
        "collect the candidates and the dependency graphs from the same module"
    )


class _Choice:
    """What is chosen for one function, and for each candidate why it is not used.

    Parameters
    ----------
    items : Sequence[Priced]
        The candidates of the function.
    graph : FunctionGraph
        The function.
    strategy : Strategy
        Chooses.
    max_memory_bytes : int, optional
        Limit of what lies between the kernels.

    Raises
    ------
    MemoryLimitError
        No plan was found that keeps the limit.
    """

    def __init__(
        self,
        items: Sequence[Priced],
        graph: FunctionGraph,
        strategy: Strategy,
        max_memory_bytes: int | None,
    ) -> None:
        self._dependencies = Dependencies(graph)
        self._is_optimal = strategy is best
        self.reasons = [self._refusal(item, graph) for item in items]
        open_ = [i for i, reason in enumerate(self.reasons) if reason is None]
        considered = tuple(items[i] for i in open_)
        problem = Problem(graph, self._dependencies, considered, max_memory_bytes)
        selection = strategy(problem)
        # A strategy keeps to the limit where it can; only the memory of what it chose tells.
        need = problem.need(selection.chosen)
        if max_memory_bytes is not None and need.excess_bytes:
            raise MemoryLimitError(
                f"planner: values between the kernels of {graph.name} may take "
                f"{_size(max_memory_bytes)}, but the best plan found needs "
                f"{_size(need.peak_bytes)}; allow more"
            )
        self.gap_us = sum(selection.gaps.values())
        self._explain(items, open_, selection)

    def _refusal(self, item: Priced, graph: FunctionGraph) -> str | None:
        """Return why a candidate is not worth or not able to be a group at all.

        What saves nothing is left to the strategies that are compared with: fusing it may be
        the very mistake that they make.
        """
        if self._is_optimal and item.most_saved_us <= 0:
            fused, apart = _us(item.time.fused_us), _us(item.time.unfused_us)
            return f"{item.source} {fused} fused against {apart} apart"
        back = self._dependencies.way_back(item.candidate)
        if back is not None:
            label = graph.labels[back] if graph.labels else f"binding {back}"
            return f"a value leaves it and comes back through {label}, which would close a cycle"
        return None

    def _explain(self, items: Sequence[Priced], open_: Sequence[int], found: Selection) -> None:
        """Add the reasons of what could have been chosen."""
        # Items beyond the candidates stand for bindings that nobody needs any more.
        chosen = [items[open_[i]] for i in sorted(found.chosen) if i < len(open_)]
        owner = {binding: item for item in chosen for binding in item.candidate.provides}
        for i, at in enumerate(open_):
            if i not in found.chosen:
                note = _UNPROVEN if i in found.unproven else ""
                self.reasons[at] = self._defeat(items[at], owner) + note

    def _defeat(self, item: Priced, owner: Mapping[int, Priced]) -> str:
        """Return which chosen groups keep a candidate out, by the plainest reason that holds.

        The planner weighs all candidates at once and gives no reason; each is found afterwards,
        against what was chosen.
        """
        winners = list(dict.fromkeys(owner[b] for b in item.candidate.bindings if b in owner))
        if winners:
            saved_us = sum(winner.time.saved_us for winner in winners)
            return (
                f"its operators go to {_names(winners)}, saving {_us(saved_us)} instead of "
                f"{_us(item.time.saved_us)}"
            )
        # It shares no operator with a group, so the groups in its way are those that it would
        # close a cycle with.
        chosen = list(dict.fromkeys(owner.values()))
        cycles = self._dependencies.cycles([*(o.candidate for o in chosen), item.candidate])
        others = {hop.group for cycle in cycles for hop in cycle.hops} - {len(chosen)}
        if others:
            return f"would close a cycle with {_names([chosen[i] for i in sorted(others)])}"
        fused, apart = _us(item.time.fused_us), _us(item.time.unfused_us)
        return f"left out by the planner; {item.source} {fused} fused against {apart} apart"


def _names(items: Sequence[Priced]) -> str:
    shown = [f"{item.candidate.label} [{item.candidate.pattern}]" for item in items[:3]]
    more = len(items) - len(shown)
    return " and ".join(shown) + (f" and {more} more" if more else "")


def _us(value: float) -> str:
    return f"{value:.1f} µs" if value >= 10 else f"{value:.2f} µs"


def _size(n_bytes: int) -> str:
    return f"{n_bytes / 2**20:.2f} MiB" if n_bytes >= 2**20 else f"{n_bytes} bytes"


def _plan(
    priced: Sequence[Priced], reasons: Sequence[str | None], *, planner: str, gap_us: float
) -> FusionPlan:
    groups = [
        Group(item.candidate, item.time, item.predicted)
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
                item.time,
            )
            for item, reason in zip(priced, reasons, strict=True)
            if reason is not None
        ),
        planner=planner,
        gap_us=gap_us,
    )

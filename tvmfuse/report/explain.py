"""Say what a plan fuses, what it does not, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from difflib import get_close_matches
from types import MappingProxyType
from typing import Any

from tvmfuse._pipeline import Planned
from tvmfuse.errors import ModelError
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.dataflow import functions as functions_of
from tvmfuse.patterns.opgraph import Describer
from tvmfuse.plan import Candidate, FunctionGraph, FusionPlan, RunTime
from tvmfuse.report.near import Near
from tvmfuse.report.near import near as find_near

Place = tuple[str, int]  # a function and a position in it


@dataclass(frozen=True)
class Fused:
    """One group of the plan.

    Parameters
    ----------
    pattern, family : str
        What found it, and what runs it.
    ops : tuple of str
        Its operators, in order.
    nodes : tuple of str
        What a person calls them: names of the model's nodes where known.
    fused_us, unfused_us : float
        Time of the group, as one kernel and as separate ones: measured where it was, else
        predicted.
    doubt_us : float
        How far the time saved may be off, up or down, in four cases of five.
    predicted : RunTime, optional
        What was predicted, where the times were measured.
    """

    pattern: str
    family: str
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    fused_us: float
    unfused_us: float
    doubt_us: float = 0.0
    predicted: RunTime | None = None


@dataclass(frozen=True)
class Refused:
    """One match or candidate that the plan does not use.

    Parameters
    ----------
    pattern : str
        What found it.
    stage : str
        Who refused it: ``collect`` (not legal), ``plan`` (not worth it) or ``lower``.
    reason : str
        Why.
    ops, nodes : tuple of str
        Its operators, and what a person calls them.
    fused_us, unfused_us : float or None
        Predicted time of it, as one kernel and as separate ones; None where it was not asked.
    """

    pattern: str
    stage: str
    reason: str
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    fused_us: float | None = None
    unfused_us: float | None = None


@dataclass(frozen=True)
class Alone:
    """One operator that is in no group.

    Parameters
    ----------
    op, node : str
        The operator, and what a person calls it.
    reason : str
        Why no match that holds it is used; "" where no pattern met it.
    time_us : float or None
        Predicted time of its kernel; None where it is no kernel.
    near : str
        Where no pattern met it: the pattern that came nearest, and what it lacked.
    """

    op: str
    node: str
    reason: str
    time_us: float | None = None
    near: str = ""


@dataclass(frozen=True)
class Explanation:
    """What becomes of the operators of a model.

    Parameters
    ----------
    fused : tuple of Fused
        The groups of the plan.
    alone : tuple of Alone
        The operators outside of them.
    refused : tuple of Refused
        All matches that the plan does not use; most overlap with a group that it does.
    near : tuple of Near
        Places that a pattern nearly matches; by pattern, the nearest first.
    n_ops : int
        All operators of the model.
    planner : str
        Who chose.
    gap_us : float
        What the best plan may save more at most; 0 where this is proven to be the best.
    notes : tuple of str
        What else there is to say about how the plan was made.
    """

    fused: tuple[Fused, ...]
    alone: tuple[Alone, ...]
    refused: tuple[Refused, ...]
    near: tuple[Near, ...] = ()
    n_ops: int = 0
    planner: str = "optimal"
    gap_us: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def n_fused_ops(self) -> int:
        """Operators that are part of a group; one that several groups compute counts once."""
        return self.n_ops - len(self.alone)

    @property
    def saved_us(self) -> float:
        """Predicted time saved by all groups together, in microseconds."""
        return sum(group.unfused_us - group.fused_us for group in self.fused)

    @property
    def fused_us(self) -> float:
        """Predicted time of a run by this plan, in microseconds."""
        alone_us = sum(op.time_us or 0.0 for op in self.alone)
        return alone_us + sum(group.fused_us for group in self.fused)

    @property
    def unfused_us(self) -> float:
        """Predicted time of a run of every operator by itself, in microseconds."""
        return self.fused_us + self.saved_us

    @property
    def nearest(self) -> tuple[Near, ...]:
        """The nearest miss of each pattern."""
        first: dict[str, Near] = {}
        for miss in self.near:
            first.setdefault(miss.pattern, miss)
        return tuple(first.values())

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON-compatible data."""
        return {
            "ops": self.n_ops,
            "fused_ops": self.n_fused_ops,
            "saved_us": self.saved_us,
            "fused_us": self.fused_us,
            "unfused_us": self.unfused_us,
            "planner": self.planner,
            "gap_us": self.gap_us,
            "notes": list(self.notes),
            "fused": [asdict(group) for group in self.fused],
            "alone": [asdict(op) for op in self.alone],
            "refused": [asdict(match) for match in self.refused],
            "near": [asdict(miss) for miss in self.near],
        }


def explain_planned(planned: Planned) -> Explanation:
    """Put names to what the planner made of a model, and ask every pattern what it missed."""
    return explain(
        planned.plan,
        planned.graphs,
        alone_us=times_alone(planned),
        near=find_near(planned.module, planned.registry, planned.plan.rejections),
    )


def explain(
    plan: FusionPlan,
    functions: Mapping[str, FunctionGraph],
    *,
    alone_us: Mapping[Place, float] = MappingProxyType({}),
    near: Sequence[Near] = (),
) -> Explanation:
    """Put names to a plan.

    Parameters
    ----------
    plan : FusionPlan
        What was chosen, and what was not.
    functions : Mapping of str to FunctionGraph
        The functions that it speaks of, by name; they name the bindings.
    alone_us : Mapping of (str, int) to float
        Predicted time of the operators, by function and position.
    near : sequence of Near
        What was nearly matched.
    """
    fused = tuple(
        Fused(
            group.candidate.pattern,
            group.candidate.family,
            *_names(functions, group.candidate.function, group.candidate.bindings),
            group.time.fused_us,
            group.time.unfused_us,
            group.time.doubt_us,
            group.predicted,
        )
        for group in plan.groups
    )
    refused = tuple(
        Refused(
            match.pattern,
            match.stage,
            match.reason,
            *_names(functions, match.function, match.bindings),
            match.time.fused_us if match.time else None,
            match.time.unfused_us if match.time else None,
        )
        for match in plan.rejections
    )
    alone = (
        replace(op, time_us=alone_us.get(place), near="" if op.reason else _nearest(op.node, near))
        for place, op in _alone(plan, functions)
    )
    n_ops = sum(bool(op) for graph in functions.values() for op in graph.ops)
    return Explanation(
        *(fused, tuple(alone), refused, tuple(near), n_ops),
        *(plan.planner, plan.gap_us, plan.notes),
    )


def about(explanation: Explanation, node: str) -> Explanation:
    """Keep only what concerns one node.

    Parameters
    ----------
    explanation : Explanation
        All there is to say.
    node : str
        What a person calls the node.

    Raises
    ------
    ModelError
        The model has no node of that name, once it is simplified.
    """
    fused = tuple(group for group in explanation.fused if node in group.nodes)
    alone = tuple(op for op in explanation.alone if node == op.node)
    if fused or alone:
        refused = tuple(match for match in explanation.refused if node in match.nodes)
        near = tuple(m for m in explanation.near if node in m.nodes or node == m.at)
        n_ops = len(alone) + sum(len(group.ops) for group in fused)
        return replace(
            explanation, fused=fused, alone=alone, refused=refused, near=near, n_ops=n_ops
        )
    known = {name for group in explanation.fused for name in group.nodes}
    known |= {op.node for op in explanation.alone}
    alike = ", ".join(get_close_matches(node, sorted(known), n=3, cutoff=0.4))
    raise ModelError(
        f"explain: the model has no node named {node!r}; "
        + (f"did you mean {alike}?" if alike else "--json lists all of them")
    )


def near_to(explanation: Explanation, pattern: str) -> tuple[Near, ...]:
    """Return what one pattern nearly matches, the nearest first."""
    return tuple(miss for miss in explanation.near if miss.pattern == pattern)


def _nearest(node: str, near: Sequence[Near]) -> str:
    for miss in sorted(near, key=lambda miss: -len(miss.ops) / miss.total):
        if node in miss.nodes or node == miss.at:
            return f"{miss.pattern}: {miss.condition}"
    return ""


def times_alone(planned: Planned) -> dict[Place, float]:
    """Predict the time of every operator as a kernel of its own, in microseconds."""
    times = {}
    for name, function in functions_of(planned.module):
        flow = Dataflow.of(name, function)
        describer = Describer(flow)
        for i in range(len(flow.bindings)):
            if flow.groupable[i]:
                family = operators.family(flow.value(i))
                alone = Candidate("single", family, name, (i,), describer.graph((i,)))
                times[name, i] = planned.model.predict(alone).unfused_us
    return times


def _alone(
    plan: FusionPlan, functions: Mapping[str, FunctionGraph]
) -> Iterator[tuple[Place, Alone]]:
    grouped = {
        (group.candidate.function, i) for group in plan.groups for i in group.candidate.bindings
    }
    reasons: dict[tuple[str, int], str] = {}
    for match in plan.rejections:
        for i in match.bindings:
            reasons.setdefault((match.function, i), match.reason)
    for name, graph in functions.items():
        for i, (op, node) in enumerate(zip(graph.ops, graph.labels, strict=True)):
            if op and (name, i) not in grouped:
                yield (name, i), Alone(_short(op), node, reasons.get((name, i), ""))


def _names(
    functions: Mapping[str, FunctionGraph], function: str, bindings: Sequence[int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the operators and the labels of some bindings."""
    if not bindings:  # a pattern that failed speaks of no place
        return (), ()
    graph = functions[function]
    return tuple(_short(graph.ops[i]) for i in bindings), tuple(graph.labels[i] for i in bindings)


def _short(op: str) -> str:
    return op.removeprefix("relax.").removeprefix("nn.")

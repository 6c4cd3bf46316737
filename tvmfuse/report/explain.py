"""Say what a plan fuses, what it does not, and why."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from types import MappingProxyType

from tvmfuse._pipeline import Planned
from tvmfuse.errors import ModelError
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.dataflow import functions as functions_of
from tvmfuse.patterns.opgraph import Describer
from tvmfuse.plan import Candidate, FunctionGraph, FusionPlan
from tvmfuse.report.explanation import Alone, Explanation, Fused, Place, Refused
from tvmfuse.report.near import Near
from tvmfuse.report.near import near as find_near


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
        + (f"did you mean {alike}?" if alike else f"its nodes are {_some(sorted(known))}")
    )


def _some(names: Sequence[str], limit: int = 5) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more (--json lists them)" if more > 0 else "")


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

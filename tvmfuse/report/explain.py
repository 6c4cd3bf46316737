"""Say what a plan fuses, what it does not, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from difflib import get_close_matches
from typing import Any

from tvmfuse.errors import ModelError
from tvmfuse.plan import FunctionGraph, FusionPlan


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
        Predicted time of the group, as one kernel and as separate ones.
    """

    pattern: str
    family: str
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    fused_us: float
    unfused_us: float


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
    """

    pattern: str
    stage: str
    reason: str
    ops: tuple[str, ...]
    nodes: tuple[str, ...]


@dataclass(frozen=True)
class Explanation:
    """What becomes of the operators of a model.

    Parameters
    ----------
    fused, refused : tuple
        The groups of the plan, and what it does not use.
    n_ops : int
        Operators of the model that do work at run time.
    """

    fused: tuple[Fused, ...]
    refused: tuple[Refused, ...]
    n_ops: int

    @property
    def n_fused_ops(self) -> int:
        """Operators that are part of a group."""
        return sum(len(group.ops) for group in self.fused)

    @property
    def saved_us(self) -> float:
        """Predicted time saved by all groups together, in microseconds."""
        return sum(group.unfused_us - group.fused_us for group in self.fused)

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON-compatible data."""
        return {
            "ops": self.n_ops,
            "fused_ops": self.n_fused_ops,
            "saved_us": self.saved_us,
            "fused": [asdict(group) for group in self.fused],
            "refused": [asdict(match) for match in self.refused],
        }


def explain(plan: FusionPlan, functions: Mapping[str, FunctionGraph]) -> Explanation:
    """Put names to a plan.

    Parameters
    ----------
    plan : FusionPlan
        What was chosen, and what was not.
    functions : Mapping of str to FunctionGraph
        The functions that it speaks of, by name; they name the bindings.
    """
    fused = tuple(
        Fused(
            group.candidate.pattern,
            group.candidate.family,
            *_names(functions, group.candidate.function, group.candidate.bindings),
            group.time.fused_us,
            group.time.unfused_us,
        )
        for group in plan.groups
    )
    refused = tuple(
        Refused(
            match.pattern,
            match.stage,
            match.reason,
            *_names(functions, match.function, match.bindings),
        )
        for match in plan.rejections
    )
    n_ops = sum(bool(op) for function in functions.values() for op in function.ops)
    return Explanation(fused, refused, n_ops)


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
        No group and no refusal concerns a node of that name.
    """
    fused = tuple(group for group in explanation.fused if node in group.nodes)
    refused = tuple(match for match in explanation.refused if node in match.nodes)
    if fused or refused:
        return Explanation(fused, refused, explanation.n_ops)
    known = {name for group in explanation.fused for name in group.nodes}
    known |= {name for match in explanation.refused for name in match.nodes}
    near = ", ".join(get_close_matches(node, sorted(known), n=3, cutoff=0.4))
    raise ModelError(
        f"explain: no pattern met a node named {node!r}"
        + (f"; did you mean {near}?" if near else "; --json lists the nodes that were met")
    )


def _names(
    functions: Mapping[str, FunctionGraph], function: str, bindings: Sequence[int]
) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the operators and the labels of some bindings."""
    graph = functions[function]
    short = (graph.ops[i].removeprefix("relax.").removeprefix("nn.") for i in bindings)
    return tuple(short), tuple(graph.labels[i] for i in bindings)

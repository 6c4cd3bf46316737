"""Say which patterns nearly met which operators, and what kept them from it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse.patterns.base import Pattern
from tvmfuse.patterns.dataflow import Dataflow, functions
from tvmfuse.patterns.near import near_misses
from tvmfuse.patterns.registry import Registry
from tvmfuse.plan import Rejection


@dataclass(frozen=True)
class Near:
    """A place that a pattern nearly matches.

    Parameters
    ----------
    pattern : str
        Its name.
    ops, nodes : tuple of str
        The operators that fit, and what a person calls them.
    total : int
        How many operators it needs.
    condition : str
        The first condition that failed.
    at : str
        The node that failed it; "" where it is none.
    has_anchor : bool
        Whether an operator that the pattern is about (a product, a reduction, say) fits.
    """

    pattern: str
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    total: int
    condition: str
    at: str = ""
    has_anchor: bool = True

    @property
    def found(self) -> str:
        """How many of its operators are there, in words."""
        n_found = len(self.ops)
        return f"all {n_found}" if n_found == self.total else f"{n_found} of {self.total}"


def near(module: Any, registry: Registry, rejections: Sequence[Rejection]) -> tuple[Near, ...]:
    """Find what every pattern nearly matches in a module.

    Parameters
    ----------
    module : IRModule
        In canonical form.
    registry : Registry
        The patterns.
    rejections : sequence of Rejection
        Matches of all operators that were not legal: nothing comes nearer.

    Returns
    -------
    tuple of Near
        By pattern, the nearest first. Generators that are no graph have only rejections.
    """
    flows = {name: Dataflow.of(name, function) for name, function in functions(module)}
    failed = {match.pattern for match in rejections if not match.bindings}
    found: list[Near] = []
    for pattern in registry.patterns:
        if pattern.name in failed:
            continue
        found += _refused(pattern.name, rejections, flows)
        if isinstance(pattern, Pattern):
            for flow in flows.values():
                for miss in near_misses(pattern, flow):
                    at = flow.labels[miss.at] if miss.at is not None else ""
                    names = _names(flow, miss.bindings)
                    found.append(
                        Near(
                            *(pattern.name, *names, miss.total, miss.condition),
                            *(at, miss.has_anchor),
                        )
                    )
    return tuple(found)


def _refused(
    pattern: str, rejections: Sequence[Rejection], flows: Mapping[str, Dataflow]
) -> Iterator[Near]:
    for match in rejections:
        if match.pattern == pattern and match.stage == "collect" and match.bindings:
            names = _names(flows[match.function], match.bindings)
            yield Near(pattern, *names, len(match.bindings), match.reason)


def _names(flow: Dataflow, bindings: Sequence[int]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    ops = tuple(flow.operators[i].removeprefix("relax.").removeprefix("nn.") for i in bindings)
    return ops, tuple(flow.labels[i] for i in bindings)

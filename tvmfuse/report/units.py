"""The kernels that a plan makes, in order, with what each reads: for pictures of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvmfuse._pipeline import Planned
from tvmfuse.plan import FunctionGraph, Group
from tvmfuse.report.explain import times_alone


@dataclass(frozen=True)
class Unit:
    """One kernel, or one operator that needs none.

    Parameters
    ----------
    ops, nodes : tuple of str
        Its operators, and what a person calls them.
    pattern : str
        What fused it; "" where it is one operator alone.
    time_us, apart_us : float
        Predicted time, as it is and with every operator by itself; 0 for a view.
    reads : tuple of int
        The units whose values it reads, by position.
    bindings : tuple of int
        Positions of its operators.
    """

    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    pattern: str
    time_us: float
    apart_us: float
    reads: tuple[int, ...]
    bindings: tuple[int, ...]

    @property
    def title(self) -> str:
        """Its operators in a line."""
        return " + ".join(self.ops)

    @property
    def saved_us(self) -> float:
        """Predicted time that fusing it saves, in microseconds."""
        return self.apart_us - self.time_us


def units(planned: Planned, function: str = "main") -> tuple[Unit, ...]:
    """Return the kernels of one function, in an order in which they can run.

    Parameters
    ----------
    planned : Planned
        A model with its plan.
    function : str
        Name of the function.
    """
    graph = planned.graphs[function]
    groups = [g for g in planned.plan.groups if g.candidate.function == function]
    grouped = {i for group in groups for i in group.candidate.bindings}
    times = times_alone(planned)
    made: list[tuple[tuple[int, ...], Group | None]] = [(g.candidate.bindings, g) for g in groups]
    made += [((i,), None) for i in range(len(graph.deps)) if i not in grouped]
    # A group can run once its last operator's operands are there: that is a good order.
    made.sort(key=lambda item: item[0][-1])
    provider = _providers(made)
    found = []
    for bindings, group in made:
        read = {provider[i] for at in bindings for i in graph.deps[at] if i not in bindings}
        alone = times.get((function, bindings[0]), 0.0)
        found.append(
            Unit(
                ops=tuple(_short(graph, i) for i in bindings),
                nodes=tuple(dict.fromkeys(graph.labels[i] for i in bindings)),
                pattern=group.candidate.pattern if group else "",
                time_us=group.time.fused_us if group else alone,
                apart_us=group.time.unfused_us if group else alone,
                reads=tuple(sorted(read)),
                bindings=bindings,
            )
        )
    return tuple(found)


def _providers(made: list[tuple[tuple[int, ...], Group | None]]) -> Mapping[int, int]:
    """Return for every binding the unit that others read its value from."""
    provider: dict[int, int] = {}
    for number, (bindings, group) in enumerate(made):
        provides = group.candidate.provides if group else bindings
        provider.update(dict.fromkeys(provides, number))
    return provider


def _short(graph: FunctionGraph, binding: int) -> str:
    name = graph.ops[binding].removeprefix("relax.").removeprefix("nn.")
    return name or "tuple"

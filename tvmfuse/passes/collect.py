"""Find every legal candidate for fusion in a module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tvmfuse._tvm import relax
from tvmfuse.errors import PatternError
from tvmfuse.patterns.base import Generator, Match
from tvmfuse.patterns.dataflow import Dataflow, functions
from tvmfuse.patterns.opgraph import Describer
from tvmfuse.patterns.plugins import describe
from tvmfuse.patterns.registry import Registry
from tvmfuse.plan import INLINED, Candidate, FunctionGraph, Rejection


@dataclass(frozen=True)
class Collected:
    """Everything the planner needs to know about a module.

    Parameters
    ----------
    graphs : Mapping of str to FunctionGraph
        Dependencies within each Relax function, by its name.
    candidates : tuple of Candidate
        Every legal candidate; by function, then pattern, then position.
    rejections : tuple of Rejection
        Every match that was refused, with its reason.
    """

    graphs: Mapping[str, FunctionGraph]
    candidates: tuple[Candidate, ...]
    rejections: tuple[Rejection, ...]


def collect(mod: Any, registry: Registry) -> Collected:
    """Find every legal candidate, overlapping ones included; change nothing.

    Parameters
    ----------
    mod : IRModule
        A canonical module.
    registry : Registry
        The patterns to try, in order of preference.

    Returns
    -------
    Collected
        The candidates, the refused matches and the dependency graphs.
    """
    graphs: dict[str, FunctionGraph] = {}
    candidates: list[Candidate] = []
    rejections = [
        Rejection(failure.name, "", (), "collect", failure.reason) for failure in registry.failed
    ]
    for name, function in functions(mod):
        flow = Dataflow.of(name, function)
        found = _FunctionCollector(flow)
        graphs[name] = found.graph
        for pattern in registry.patterns:
            found.run(pattern)
        candidates += found.candidates
        rejections += found.rejections
    return Collected(graphs, tuple(candidates), tuple(rejections))


class _FunctionCollector:
    """Gathers the candidates of one function, pattern by pattern."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._describer = Describer(flow)
        self._candidates: dict[tuple[int, ...], Candidate] = {}
        self._copying: dict[tuple[int, ...], Candidate] = {}
        self._refused: dict[tuple[int, ...], Rejection] = {}
        self._failed: list[Rejection] = []
        self._taken: set[int] = set()

    @property
    def graph(self) -> FunctionGraph:
        """The function as plain data."""
        flow = self._flow
        return FunctionGraph(
            flow.name,
            flow.deps,
            flow.labels,
            flow.operators,
            n_bytes=tuple(self._describer.n_bytes(i) for i in range(len(flow.bindings))),
            results=tuple(sorted(flow.escaping)),
        )

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The legal candidates, one for each set of bindings."""
        copying = (c for members, c in self._copying.items() if members not in self._candidates)
        return (*self._candidates.values(), *copying)

    @property
    def rejections(self) -> tuple[Rejection, ...]:
        """What was refused, unless another pattern or variant took just these bindings."""
        used = {**self._candidates, **self._copying}
        left = (r for bindings, r in self._refused.items() if bindings not in used)
        return (*self._failed, *left)

    def run(self, pattern: Generator) -> None:
        """Add what ``pattern`` finds; if it fails, drop all it found and say so."""
        try:
            matches = [
                self._sound(match) for match in pattern.find(self._flow, frozenset(self._taken))
            ]
        except Exception as fault:  # noqa: BLE001 - a pattern of somebody else's may raise anything
            reason = f"the pattern failed: {describe(fault)}"
            self._failed.append(self._rejection(pattern, (), reason))
            return
        for match in matches:
            self._add(pattern, match)
        # Only once it is through: its own matches do not hide each other.
        self._taken.update(i for bindings in self._candidates for i in bindings)

    def _sound(self, match: Match) -> Match:
        """Return a match whose bindings are positions in the function, ascending."""
        members = match.bindings
        end = len(self._flow.bindings)
        if not members or any(a >= b for a, b in pairwise((-1, *members, end))):
            raise PatternError(
                f"the bindings of a match must be ascending positions below {end}, but are "
                f"{members}"
            )
        return match

    def _add(self, pattern: Generator, match: Match) -> None:
        members = match.bindings
        if members in self._candidates:
            return
        reason = match.refusal or _illegal(
            self._flow, members, is_multi_output=pattern.is_multi_output
        )
        if not reason:
            self._candidates[members] = self._candidate(pattern, match)
            return
        is_leak = not match.refusal and not pattern.is_multi_output
        copies = _copies(self._flow, members) if is_leak else ()
        if copies and not _illegal(self._flow, members, copies=copies, is_multi_output=False):
            self._copying.setdefault(members, self._candidate(pattern, match, copies))
        self._refused.setdefault(members, self._rejection(pattern, members, reason))

    def _candidate(
        self, pattern: Generator, match: Match, copies: tuple[int, ...] = ()
    ) -> Candidate:
        return Candidate(
            pattern=pattern.name,
            family=match.family,
            function=self._flow.name,
            bindings=match.bindings,
            graph=self._describer.graph(match.bindings, without=copies),
            recomputes=copies,
        )

    def _rejection(self, pattern: Generator, bindings: tuple[int, ...], reason: str) -> Rejection:
        first_line = " ".join(reason.split("\n", maxsplit=1)[0].split())
        return Rejection(pattern.name, self._flow.name, bindings, "collect", first_line)


def _copies(flow: Dataflow, members: tuple[int, ...]) -> tuple[int, ...]:
    """Return the members to compute once more because others read them, too.

    They must be cheap, which is what can be inlined, and so must all that they read inside.
    Nothing where the group has no single end.
    """
    ends = [i for i in members if not any(user in members for user in flow.users[i])]
    if len(ends) != 1:
        return ()
    copies = set(flow.outputs(members)) - set(ends)
    for member in reversed(members):
        if copies.intersection(flow.users[member]) or member in copies:
            copies.add(member)
    return tuple(sorted(copies)) if all(flow.kinds[i] in INLINED for i in copies) else ()


def _illegal(
    flow: Dataflow,
    members: tuple[int, ...],
    *,
    is_multi_output: bool,
    copies: tuple[int, ...] = (),
) -> str:
    """Say why ``members`` cannot be one function; "" where they can."""
    for member in members:
        if not flow.groupable[member] and flow.kinds[member] != "view":
            return f"{flow.labels[member]} is not a pure operator on tensors of known shape"
    if len({flow.block_of[member] for member in members}) > 1:
        return "its operators lie in different blocks"
    if flow.block_of[members[0]] not in flow.pure_blocks:
        return "its operators lie outside a dataflow block"
    outputs = [i for i in flow.outputs(members) if i not in copies]
    if not is_multi_output and len(outputs) > 1:
        return f"the intermediate {_leak(flow, members, outputs[0])}"
    if len(outputs) > 1 and any(isinstance(flow.var(i).ty, relax.TupleType) for i in outputs):
        return "one of its several results is a tuple"
    if not flow.is_convex(members, copies=copies):
        return "an operator between its parts depends on one and feeds another"
    return ""


def _leak(flow: Dataflow, members: tuple[int, ...], leaked: int) -> str:
    readers = [user for user in flow.users[leaked] if user not in members]
    if not readers:
        return f"{flow.labels[leaked]} is an output of the function"
    return f"{flow.labels[leaked]} is also read by {flow.labels[readers[0]]}"

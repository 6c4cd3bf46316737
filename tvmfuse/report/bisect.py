"""Find the fusion that changes the answer of a model, or that slows it down.

A plan is a set of groups, and any part of it is a plan as well. So the groups are
switched on and off until the ones to blame are left, by the delta debugging of
Zeller and Hildebrandt ("Simplifying and isolating failure-inducing input", 2002).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any

import numpy as np

from tvmfuse import _pipeline
from tvmfuse._pipeline import Planned
from tvmfuse.frontend import Model
from tvmfuse.plan import Group
from tvmfuse.runtime import Session
from tvmfuse.runtime.comparison import Difference, compare
from tvmfuse.runtime.timing import calls_in, measure
from tvmfuse.targets import Target

Arrays = Mapping[str, np.ndarray[Any, Any]]
Say = Callable[[str], None]


class Builds:
    """Compiles a model with any part of its plan; each part once.

    Parameters
    ----------
    model : Model
        What the frontend made.
    planned : Planned
        The model with its whole plan.
    target : Target
        A device of this machine.
    """

    def __init__(self, model: Model, planned: Planned, target: Target) -> None:
        self._model, self.planned, self._target = model, planned, target
        self._sessions: dict[tuple[Group, ...], Session] = {}
        self.count = 0

    @property
    def groups(self) -> tuple[Group, ...]:
        """All groups of the plan."""
        return self.planned.plan.groups

    def session(self, groups: Sequence[Group]) -> Session:
        """Return the model compiled with these groups only."""
        key = tuple(groups)
        if key not in self._sessions:
            self.count += 1
            plan = replace(self.planned.plan, groups=key, rejections=())
            planned = replace(self.planned, plan=plan)
            compiled = _pipeline.build_planned(self._model, planned, self._target)
            self._sessions.clear()  # a large model would not fit many times
            self._sessions[key] = Session.of(compiled)
        return self._sessions[key]


@dataclass(frozen=True)
class Wrong:
    """Which groups change the answer.

    Parameters
    ----------
    culprits : tuple of Group
        The smallest set found that does; empty where the plan as a whole does not.
    fused, unfused : tuple of Difference
        How far the model is from the reference with all groups, and with none. The
        reference is ONNX Runtime where that was given, else the model without groups.
    blamed : tuple of Difference
        The same with the culprits alone.
    n_builds : int
        How often the model was compiled.
    """

    culprits: tuple[Group, ...]
    fused: tuple[Difference, ...]
    unfused: tuple[Difference, ...]
    blamed: tuple[Difference, ...]
    n_builds: int


def find_wrong(
    builds: Builds,
    feeds: Arrays,
    *,
    reference: Arrays | None = None,
    rtol: float,
    say: Say = lambda _: None,
) -> Wrong:
    """Find the groups that change the answer.

    Parameters
    ----------
    builds : Builds
        Compiles the model.
    feeds : Mapping of str to ndarray
        Its inputs.
    reference : Mapping of str to ndarray, optional
        Its outputs by somebody else. Where the model without groups does not agree with
        them, no group is to blame for that, and it becomes the reference itself.
    rtol : float
        Largest max|a-b| / max|b| of an output that is the same.
    say : callable
        Is told what goes on.
    """

    def outputs(groups: Sequence[Group]) -> Arrays:
        session = builds.session(groups)
        names = [spec.name for spec in session.outputs]
        return dict(zip(names, session.run(names, feeds), strict=True))

    plain, whole = outputs(()), outputs(builds.groups)
    trusted = reference if reference is not None else plain
    unfused = compare(plain, trusted, rtol=rtol)
    fused = compare(whole, trusted, rtol=rtol)
    if not _agrees(unfused):
        trusted = plain
    if _agrees(compare(whole, trusted, rtol=rtol)):
        return Wrong((), fused, unfused, (), builds.count)

    def is_wrong(groups: Sequence[Group]) -> bool:
        say(f"{len(groups)} of {len(builds.groups)} groups, build {builds.count + 1}")
        return not _agrees(compare(outputs(groups), trusted, rtol=rtol))

    culprits = tuple(minimal(builds.groups, is_wrong))
    blamed = compare(outputs(culprits), trusted, rtol=rtol)
    return Wrong(culprits, fused, unfused, blamed, builds.count)


def minimal(items: Sequence[Group], fails: Callable[[Sequence[Group]], bool]) -> Sequence[Group]:
    """Return a part of ``items`` that fails, and no longer does without any one of them.

    Parameters
    ----------
    items : sequence of Group
        They fail together; none of them do not.
    fails : callable
        Tells whether a part, in the same order, still fails.
    """
    n_parts = 2
    while len(items) > 1:
        size = -(-len(items) // n_parts)
        parts = [items[i : i + size] for i in range(0, len(items), size)]
        rests = [[i for i in items if i not in part] for part in parts] if n_parts > 2 else []
        found = next((part for part in [*parts, *rests] if fails(part)), None)
        if found is not None:
            n_parts = 2 if len(found) <= size else max(n_parts - 1, 2)
            items = found
        elif n_parts >= len(items):
            break
        else:
            n_parts = min(2 * n_parts, len(items))
    return items


def _agrees(differences: Sequence[Difference]) -> bool:
    return all(difference.is_close for difference in differences)


@dataclass(frozen=True)
class Slow:
    """Equal groups without which the model is faster.

    Parameters
    ----------
    groups : tuple of Group
        The groups; they share one kernel.
    ratio : float
        Time of the model with the whole plan over its time without them, both in turns.
    low : float
        What the ratio is above in three of four rounds.
    """

    groups: tuple[Group, ...]
    ratio: float
    low: float


def find_slow(
    builds: Builds,
    feeds: Arrays,
    *,
    gain: float = 1.02,
    rounds: int = 15,
    say: Say = lambda _: None,
) -> tuple[Slow, ...]:
    """Find the groups without which the model is faster.

    Parameters
    ----------
    builds : Builds
        Compiles the model.
    feeds : Mapping of str to ndarray
        Its inputs.
    gain : float
        How many times faster the model must be without them.
    rounds : int
        Turns that each side has.
    say : callable
        Is told what goes on.

    Returns
    -------
    tuple of Slow
        The worst first. Equal groups are judged together, each kind by itself.
    """
    whole = builds.session(builds.groups)
    kinds: dict[object, list[Group]] = {}
    for group in builds.groups:
        kinds.setdefault(_kind(group), []).append(group)
    found = []
    for number, alike in enumerate(kinds.values(), 1):
        say(f"kind {number} of {len(kinds)}: {alike[0].candidate.label}")
        rest = [group for group in builds.groups if group not in alike]
        ratio, low = _paired(whole, builds.session(rest), feeds, rounds=rounds)
        if low > 1.0 and ratio >= gain:
            found.append(Slow(tuple(alike), ratio, low))
    return tuple(sorted(found, key=lambda slow: -slow.ratio))


def _kind(group: Group) -> object:
    """Return what equal groups have in common: pattern, operators and tensors."""
    graph = group.candidate.graph
    ops = tuple((op.name, op.inputs, op.outputs, op.flops) for op in graph.ops)
    return group.candidate.pattern, ops, graph.tensors


def _paired(whole: Session, without: Session, feeds: Arrays, *, rounds: int) -> tuple[float, float]:
    """Return the time of ``whole`` over that of ``without``: median and first quartile."""

    def call(session: Session) -> Callable[[], object]:
        return lambda: session.run(None, feeds)

    calls_us = measure(call(whole), rounds=1).median_us
    calls = calls_in(20e3, call_us=calls_us)
    ratios = []
    for _ in range(rounds):
        ours, theirs = (
            measure(call(session), rounds=1, round_us=calls * calls_us).median_us
            for session in (whole, without)
        )
        ratios.append(ours / theirs)
    return median(ratios), float(np.quantile(ratios, 0.25))

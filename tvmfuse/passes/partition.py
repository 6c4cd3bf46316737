"""Turn a fusion plan into functions: one private function per group.

After this pass every operator call of a function is inside a group, so the later
stages see nothing but groups; what no candidate covers is a group of one.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Any

from tvmfuse._tvm import relax
from tvmfuse.errors import PlanMismatchError
from tvmfuse.passes.inline import inline_calls
from tvmfuse.passes.outline import Outliner, Unit
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow, functions
from tvmfuse.plan import Candidate, FusionPlan


def partition(mod: Any, plan: FusionPlan) -> Any:
    """Outline each planned group, and every operator left over, into a function.

    Parameters
    ----------
    mod : IRModule
        The module that the plan was made for.
    plan : FusionPlan
        Groups that provide no binding twice and are acyclic together.

    Returns
    -------
    IRModule
        A well-formed module. Each group is a private function with the attributes
        ``Primitive``, ``tvmfuse.pattern``, ``tvmfuse.family`` and
        ``tvmfuse.bindings``; constants are arguments of it.

    Raises
    ------
    PlanMismatchError
        The plan was made for another module, or its groups overlap or form a cycle.
    """
    sources = dict(functions(mod))
    chosen = _by_function(plan, sources)
    outliner = Outliner(mod)
    for name, function in sources.items():
        flow = Dataflow.of(name, function)
        groups = [_checked(flow, candidate) for candidate in chosen.get(name, ())]
        if any(group.copies for group in groups):
            _check_reads(flow, groups)
        outliner.replace(flow, _ordered(flow, _with_singles(flow, groups)))
    module = outliner.module()
    if any(group.candidate.recomputes for group in plan.groups):
        module = relax.transform.DeadCodeElimination()(
            module
        )  # what all readers compute themselves
    return module


def _by_function(plan: FusionPlan, sources: Mapping[str, Any]) -> dict[str, list[Candidate]]:
    chosen: dict[str, list[Candidate]] = {}
    for group in plan.groups:
        chosen.setdefault(group.candidate.function, []).append(group.candidate)
    for name in chosen:
        if name not in sources:
            raise PlanMismatchError(
                f"partition: a plan may only name functions of the module ({', '.join(sources)}), "
                f"but found {name!r}: plan this module again"
            )
    return chosen


def _checked(flow: Dataflow, candidate: Candidate) -> Unit:
    """Turn a candidate into a unit, if its operators stand where it says."""
    for op in candidate.graph.ops:
        found = flow.operators[op.binding] if op.binding < len(flow.bindings) else "nothing"
        if found != op.name:
            raise PlanMismatchError(
                f"partition: the plan has {op.name} at binding {op.binding} of {flow.name}, "
                f"but the module has {found or 'no operator'} there: plan this module again"
            )
    members = candidate.bindings
    return Unit(members, candidate.pattern, candidate.family, members, candidate.recomputes)


def _check_reads(flow: Dataflow, groups: Sequence[Unit]) -> None:
    """Refuse groups that read what another keeps to itself."""
    kept = {
        member: group
        for group in groups
        for member in set(group.provides) - set(flow.outputs(group.members))
    }
    for group in groups:
        for member in group.copies:
            for read in flow.deps[member]:
                if read not in group.members and read in kept:
                    raise PlanMismatchError(
                        f"partition: {flow.labels[read]} of {flow.name} is inside the group at "
                        f"{kept[read].members}, but the group at {group.members} computes "
                        f"{flow.labels[member]} once more from it: plan this module again"
                    )


def _with_singles(flow: Dataflow, groups: Sequence[Unit]) -> list[Unit]:
    """Add a unit for every binding outside ``groups``: a group of one where it can be."""
    covered = {member for group in groups for member in group.provides}
    units = list(groups)
    for position in range(len(flow.bindings)):
        if position not in covered:
            units.append(_single(flow, position, origin=position))
    return units


def _single(flow: Dataflow, position: int, *, origin: int) -> Unit:
    if flow.block_of[position] in flow.pure_blocks and flow.groupable[position]:
        family = operators.family(flow.value(position))
        return Unit((position,), "single", family, (origin,))
    return Unit((position,))


def _ordered(flow: Dataflow, units: Sequence[Unit]) -> list[Unit]:
    """Sort units so that each follows all it reads, in program order where that is free.

    Kahn's algorithm on the graph in which every unit is one node. A group that is not
    convex, or groups that are only cyclic together, leave nodes that never become ready.
    """
    unit_of = _unit_of_member(flow, units)
    reads = [
        {
            unit_of[read]
            for member in unit.members
            for read in flow.deps[member]
            if read not in unit.members
        }
        for unit in units
    ]
    readers: list[list[int]] = [[] for _ in units]
    for index, read in enumerate(reads):
        for source in read:
            readers[source].append(index)
    missing = [len(read) for read in reads]
    ready = [(units[index].members[0], index) for index, n in enumerate(missing) if n == 0]
    heapq.heapify(ready)
    ordered = []
    while ready:
        _, index = heapq.heappop(ready)
        ordered.append(units[index])
        for reader in readers[index]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, (units[reader].members[0], reader))
    if len(ordered) < len(units):
        stuck = [units[i].members for i, n in enumerate(missing) if n and units[i].pattern]
        raise PlanMismatchError(
            f"partition: groups of {flow.name} must not depend on each other in a cycle, "
            f"but the groups at bindings {stuck[:3]} do: plan this module again"
        )
    return ordered


def _unit_of_member(flow: Dataflow, units: Sequence[Unit]) -> dict[int, int]:
    unit_of: dict[int, int] = {}
    for index, unit in enumerate(units):
        for member in unit.provides:
            if member in unit_of:
                raise PlanMismatchError(
                    f"partition: groups must be disjoint, but two of them hold binding {member} "
                    f"({flow.labels[member]}) of {flow.name}: plan this module again"
                )
            unit_of[member] = index
    return unit_of


def inline_group(mod: Any, name: str) -> Any:
    """Dissolve one group into groups of one: what is left when it cannot be lowered.

    Parameters
    ----------
    mod : IRModule
        A module that :func:`partition` made.
    name : str
        Name of the group's function.

    Returns
    -------
    IRModule
        The same computation without that function.

    Raises
    ------
    PlanMismatchError
        The module has no such group.
    """
    names = {str(var.name_hint): var for var in mod.functions}
    if name not in names or "tvmfuse.pattern" not in (mod[name].attrs or {}):
        raise PlanMismatchError(
            f"inline_group: needs the name of a group of this module, but found {name!r}"
        )
    outliner = Outliner(mod)
    for caller, function in functions(mod):
        inlined = inline_calls(function, names[name], mod[name])
        if inlined is None:
            continue
        flow = Dataflow.of(caller, inlined.function)
        units = [
            _single(flow, i, origin=inlined.origin[i]) if i in inlined.origin else Unit((i,))
            for i in range(len(flow.bindings))
        ]
        outliner.replace(flow, units)
    outliner.remove(names[name])
    return outliner.module()

"""The best disjoint groups whose contraction has no cycle."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from tvmfuse.planner.cycles import Dependencies, Hop
from tvmfuse.planner.selection import Row, Selection, components, select

# Rounds of forbidding cycles before those that remain are broken by giving groups up.
_MAX_ROUNDS = 50


def best(
    groups: Sequence[Sequence[int]], values: Sequence[float], dependencies: Dependencies
) -> Selection:
    """Choose disjoint groups, jointly acyclic, that are worth the most.

    Overlaps are constraints from the start. Cycles are too many to list, so those
    that a solution has are forbidden, and what they touch is solved again.

    Parameters
    ----------
    groups : Sequence of sequences of int
        Bindings of each group; no group has a way back of its own.
    values : Sequence[float]
        Worth of each group, above 0.
    dependencies : Dependencies
        Of the bindings.
    """
    holders: defaultdict[int, list[int]] = defaultdict(list)
    for i, group in enumerate(groups):
        for binding in group:
            holders[binding].append(i)
    overlaps = (tuple(items) for items in holders.values() if len(items) > 1)
    rows = [Row(items, 1) for items in dict.fromkeys(overlaps)]
    touched = frozenset(range(len(groups)))
    selection = Selection(frozenset())
    for _ in range(_MAX_ROUNDS):
        selection = _solve_again(selection, values, rows, touched)
        cycles = _cycles(groups, selection.chosen, dependencies)
        if not cycles:
            break
        cuts = [_cut(cycle, holders) for cycle in cycles]
        rows += cuts
        touched = frozenset(item for cut in cuts for item in cut.items)
    else:
        selection = _without_cycles(selection, groups, values, dependencies)
    return _filled_up(selection, groups, dependencies)


def _solve_again(
    old: Selection, values: Sequence[float], rows: Sequence[Row], touched: frozenset[int]
) -> Selection:
    """Solve the components that hold a touched item; keep the choice in all others."""
    parts = [p for p in components(len(values), rows) if not touched.isdisjoint(p.items)]
    stale = {item for part in parts for item in part.items}
    new = select(values, parts)
    return Selection((old.chosen - stale) | new.chosen, (old.unproven - stale) | new.unproven)


def _cycles(
    groups: Sequence[Sequence[int]], chosen: Iterable[int], dependencies: Dependencies
) -> list[tuple[Hop, ...]]:
    """Return cycles between chosen groups, whose hops count in all groups."""
    at = sorted(chosen)
    cycles = dependencies.cycles([groups[i] for i in at])
    return [tuple(replace(hop, group=at[hop.group]) for hop in cycle) for cycle in cycles]


def _cut(cycle: Sequence[Hop], holders: Mapping[int, Sequence[int]]) -> Row:
    """Forbid a cycle, and with it every one that crosses groups in the same way.

    A group that holds a hop's entry and exit closes the cycle as well. Only one of
    those can be chosen, for they overlap: so one row forbids all combinations.
    """
    items = {i for hop in cycle for i in set(holders[hop.entry]) & set(holders[hop.exit])}
    return Row(tuple(sorted(items)), len(cycle) - 1)


def _without_cycles(
    selection: Selection,
    groups: Sequence[Sequence[int]],
    values: Sequence[float],
    dependencies: Dependencies,
) -> Selection:
    """Give up the least valuable group of every cycle until there is none."""
    chosen, unproven = set(selection.chosen), set(selection.unproven)
    while cycles := _cycles(groups, chosen, dependencies):
        for cycle in cycles:
            looped = [hop.group for hop in cycle]
            unproven.update(looped)
            if chosen.issuperset(looped):
                chosen.remove(min(looped, key=lambda i: (values[i], -i)))
    return Selection(frozenset(chosen), frozenset(unproven))


def _filled_up(
    selection: Selection, groups: Sequence[Sequence[int]], dependencies: Dependencies
) -> Selection:
    """Add every group that still fits: a bounded search, or a tiny value, leaves some."""
    chosen = set(selection.chosen)
    taken = {binding for i in chosen for binding in groups[i]}
    for i, group in enumerate(groups):
        if taken.isdisjoint(group) and not _cycles(groups, {*chosen, i}, dependencies):
            chosen.add(i)
            taken.update(group)
    return Selection(frozenset(chosen), selection.unproven)

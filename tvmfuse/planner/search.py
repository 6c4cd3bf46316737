"""The best groups whose contraction has no cycle and that memory has room for."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from tvmfuse.planner.cycles import Cycle
from tvmfuse.planner.problem import Problem
from tvmfuse.planner.programme import Programme
from tvmfuse.planner.selection import Component, Row, Selection, components, select

# Rounds of forbidding cycles before those that remain are broken by giving groups up.
_MAX_ROUNDS = 50

# A choice that needs too much memory is forbidden as a whole, which says little where
# there are many others. With more groups than these, groups are given up instead.
_MAX_FORBIDDEN = 24


def best(problem: Problem) -> Selection:
    """Choose the groups that are worth the most.

    Overlaps are constraints from the start. Cycles are too many to list, so those
    that a solution has are forbidden, and what they touch is solved again.

    Returns
    -------
    Selection
        Items beyond the candidates stand for bindings that nobody needs any more.
    """
    return _Search(problem).run()


class _Search:
    """The search in the integer programme of one function, which grows by the rounds."""

    def __init__(self, problem: Problem) -> None:
        programme = Programme(problem)
        self._problem = problem
        self._holders = programme.holders
        self._rows, self._values = programme.rows, programme.values
        self._forbidden: set[frozenset[int]] = set()

    def run(self) -> Selection:
        touched = frozenset(range(len(self._values)))
        selection = Selection(frozenset())
        for _ in range(_MAX_ROUNDS):
            selection = self._solve_again(selection, touched)
            cuts = [*self._cuts(selection)]
            if not cuts:
                break
            self._rows += cuts
            touched = frozenset(item for cut in cuts for item in cut.all)
        else:
            selection = self._without_cycles(selection)
        return self._within_memory(self._filled_up(selection))

    def _solve_again(self, old: Selection, touched: frozenset[int]) -> Selection:
        """Solve the components that hold a touched item; keep the choice in all others."""
        parts = [
            part
            for part in components(len(self._values), self._rows)
            if not touched.isdisjoint(part.items)
        ]
        return _merged(old, select(self._values, parts), parts)

    def _cuts(self, selection: Selection) -> Iterator[Row]:
        """Yield what forbids a selection: its cycles, else all of it if it needs too much."""
        cycles = self._problem.cycles(selection.chosen)
        yield from (self._cut(cycle) for cycle in cycles)
        if cycles or selection.chosen in self._forbidden:
            return
        is_small = 0 < len(self._values) <= _MAX_FORBIDDEN
        if is_small and self._problem.need(selection.chosen).excess_bytes:
            self._forbidden.add(selection.chosen)
            others = set(range(len(self._values))) - selection.chosen
            chosen = tuple(sorted(selection.chosen))
            yield Row(chosen, len(chosen) - 1, given=tuple(sorted(others)))

    def _cut(self, cycle: Cycle) -> Row:
        """Forbid a cycle, and with it every one that crosses groups in the same way.

        A group that holds a hop's entry and exit, and has no copy of what it enters by,
        closes the cycle as well. Only one of those can be chosen, for they overlap: so
        one row forbids all combinations. A group with copies that takes up what the cycle
        leads over may open it.
        """
        hops = cycle.hops
        items: set[int] = set()
        for last, hop in zip([hops[-1], *hops[:-1]], hops, strict=True):
            items.add(hop.group)
            for i in self._holders[hop.exit]:
                group = self._problem.items[i].candidate
                if hop.entry in group.bindings and last.exit not in group.recomputes:
                    items.add(i)
        openers = {
            i
            for binding in cycle.between
            for i in self._holders[binding]
            if self._problem.items[i].candidate.recomputes
        }
        return Row(tuple(sorted(items)), len(hops) - 1, given=tuple(sorted(openers - items)))

    def _without_cycles(self, selection: Selection) -> Selection:
        """Give up the least valuable group of every cycle until there is none."""
        chosen, unproven = set(selection.chosen), set(selection.unproven)
        lost = 0.0
        while cycles := self._problem.cycles(chosen):
            for cycle in cycles:
                looped = [hop.group for hop in cycle.hops]
                unproven.update(looped)
                if chosen.issuperset(looped):
                    worst = min(looped, key=lambda i: (self._values[i], -i))
                    lost += self._give_up(chosen, worst)
        gaps = {**selection.gaps, -1: selection.gaps.get(-1, 0.0) + lost}
        return Selection(frozenset(chosen), frozenset(unproven), gaps)

    def _within_memory(self, selection: Selection) -> Selection:
        """Give up or exchange the groups that cost least for the memory that they free."""
        chosen, lost = set(selection.chosen), 0.0
        excess = self._problem.need(chosen).excess_bytes
        if not excess:
            return selection
        while excess:
            moves = [
                (cost / freed, sorted(other), cost)
                for cost, other in self._moves(chosen)
                if (freed := excess - self._problem.need(other).excess_bytes) > 0
            ]
            if not moves:
                break
            _, other, cost = min(moves)
            chosen, lost = set(other), lost + cost
            excess = self._problem.need(chosen).excess_bytes
        gaps = {**selection.gaps, -2: max(0.0, lost)}
        return Selection(frozenset(chosen), selection.unproven | selection.chosen, gaps)

    def _moves(self, chosen: set[int]) -> Iterator[tuple[float, set[int]]]:
        """Yield other choices that differ where memory is short, and what each costs."""
        tight = self._problem.need(chosen).values
        for i, item in enumerate(self._problem.items):
            group = item.candidate
            if tight.isdisjoint({*group.bindings, *self._problem.dependencies.reads(group)}):
                continue
            other, cost = set(chosen), 0.0
            if i in chosen:
                cost = self._give_up(other, i)
            else:
                rivals = {j for b in group.provides for j in self._holders[b]} & chosen
                for rival in sorted(rivals):
                    cost += self._give_up(other, rival) if rival in other else 0.0
                other.add(i)
                cost -= self._values[i]
                if any(not row.holds(other) for row in self._rows) or self._problem.cycles(other):
                    continue
            yield cost, other

    def _give_up(self, chosen: set[int], item: int) -> float:
        """Remove a group, and what is only allowed with it; return what that costs."""
        cost = self._values[item]
        chosen.remove(item)
        while broken := [row for row in self._rows if row.given and not row.holds(chosen)]:
            others = {i for row in broken for i in row.items} & chosen
            if not others:
                break
            cost += sum(self._values[i] for i in others)
            chosen -= others
        return cost

    def _filled_up(self, selection: Selection) -> Selection:
        """Add every group that still fits: a bounded search, or a tiny value, leaves some."""
        chosen = set(selection.chosen)
        taken = {b for group in self._problem.groups(chosen) for b in group.provides}
        rows_of: defaultdict[int, list[Row]] = defaultdict(list)
        for row in self._rows:
            for i in row.all:
                rows_of[i].append(row)
        for i, item in enumerate(self._problem.items):
            if self._values[i] <= 0 or not taken.isdisjoint(item.candidate.provides):
                continue
            fuller = {*chosen, i}
            if (
                all(row.holds(fuller) for row in rows_of[i])
                and not self._problem.cycles(fuller)
                and self._problem.need(fuller).excess_bytes
                <= self._problem.need(chosen).excess_bytes
            ):
                chosen.add(i)
                taken.update(item.candidate.provides)
        return Selection(frozenset(chosen), selection.unproven, selection.gaps)


def _merged(old: Selection, new: Selection, parts: Sequence[Component]) -> Selection:
    """Replace what was chosen in some components."""
    stale = {item for part in parts for item in part.items}
    gaps = {item: gap for item, gap in old.gaps.items() if item not in stale}
    return Selection(
        (old.chosen - stale) | new.chosen,
        (old.unproven - stale) | new.unproven,
        {**gaps, **new.gaps},
    )

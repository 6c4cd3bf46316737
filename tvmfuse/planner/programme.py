"""The integer programme of one function, before any cycle is forbidden.

The form is Korch's (Hu et al., ASPLOS 2024): any kernel may be used whose inputs some
kernel provides, and an operator may be computed by several. Written as what is saved
against no fusion, it is a packing: a binding is provided by at most one group, and one
that nobody needs any more saves its own kernel.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence

from tvmfuse.planner.problem import Problem
from tvmfuse.planner.selection import Row


class Programme:
    """What each item is worth, and which exclude or need one another.

    Parameters
    ----------
    problem : Problem
        The candidates. Items beyond them stand for bindings that nobody needs any more.

    Attributes
    ----------
    values : list of float
        What each item saves, in microseconds.
    rows : list of Row
        The constraints.
    holders : Mapping of int to list of int
        The candidates that provide each binding.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self.holders: defaultdict[int, list[int]] = defaultdict(list)
        for i, item in enumerate(problem.items):
            for binding in item.candidate.provides:
                self.holders[binding].append(i)
        overlaps = (tuple(items) for items in self.holders.values() if len(items) > 1)
        self.rows = [Row(items, 1) for items in dict.fromkeys(overlaps)]
        self.values = [item.time.saved_us for item in problem.items]
        self._add_recomputing()

    def _add_recomputing(self) -> None:
        """Add what computing a binding several times allows and forbids."""
        recomputed: dict[int, float] = {}
        for item in self._problem.items:
            recomputed |= item.alone_us
        if not recomputed:
            return
        results = self._problem.graph.results
        at = {b: len(self.values) + i for i, b in enumerate(set(recomputed) - set(results))}
        self.values += [recomputed[binding] for binding in at]
        reading: defaultdict[int, list[int]] = defaultdict(list)
        for i, item in enumerate(self._problem.items):
            for binding in self._problem.dependencies.reads(item.candidate):
                reading[binding].append(i)
        for binding, dropped in at.items():
            self.rows += self._needed(binding, dropped, reading[binding], at)
        self.rows += self._hidden(reading)

    def _needed(
        self, binding: int, dropped: int, reading: Sequence[int], at: Mapping[int, int]
    ) -> Iterator[Row]:
        """Yield when a binding must be provided: somebody outside reads it."""
        yield from self._beside_none(dropped, {*reading, *self.holders[binding]})
        for reader in self._problem.dependencies.readers(binding):
            own = tuple(
                i
                for i in self.holders[reader]
                if binding in self._problem.items[i].candidate.recomputes
            )
            yield Row((dropped,), 0, given=(*own, *([at[reader]] if reader in at else [])))

    def _hidden(self, reading: Mapping[int, Sequence[int]]) -> Iterator[Row]:
        """Yield which groups read what another keeps to itself."""
        graph = self._problem.graph
        for i, item in enumerate(self._problem.items):
            inside, given = set(item.candidate.bindings), set(item.candidate.provides)
            kept = {
                binding
                for binding in given - set(graph.results)
                if inside.issuperset(self._problem.dependencies.readers(binding))
            }
            others = {j for binding in kept for j in reading.get(binding, ())}
            yield from self._beside_none(i, others - {i})

    def _beside_none(self, item: int, others: set[int]) -> Iterator[Row]:
        """Yield that an item can be chosen beside none of others.

        Those that provide a binding exclude one another, so one row speaks of all of them:
        fewer rows than pairs, and a relaxation that is whole more often.
        """
        left = set(others)
        for other in sorted(others):
            if other in left:
                provides = self._problem.items[other].candidate.provides
                alike = max(
                    (tuple(j for j in self.holders[b] if j in left) for b in provides), key=len
                )
                left.difference_update(alike)
                yield Row((item, *alike), 1)

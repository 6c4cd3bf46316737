"""What a planner chooses from."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from tvmfuse.plan import Candidate, FunctionGraph
from tvmfuse.planner import memory
from tvmfuse.planner.cycles import Cycle, Dependencies
from tvmfuse.planner.pricing import Priced


@dataclass(frozen=True)
class Problem:
    """What to choose from, for one function.

    Parameters
    ----------
    graph : FunctionGraph
        The function.
    dependencies : Dependencies
        The same, indexed.
    items : tuple of Priced
        Candidates without a way back of their own.
    max_memory_bytes : int, optional
        What values between kernels may take at any time.
    """

    graph: FunctionGraph
    dependencies: Dependencies
    items: tuple[Priced, ...]
    max_memory_bytes: int | None = None

    def groups(self, chosen: Iterable[int]) -> list[Candidate]:
        """Return the candidates of some items, in order."""
        return [self.items[i].candidate for i in sorted(chosen) if i < len(self.items)]

    def cycles(self, chosen: Iterable[int]) -> list[Cycle]:
        """Return cycles between chosen groups, whose hops count in all items."""
        at = sorted(i for i in chosen if i < len(self.items))
        return [
            Cycle(tuple(replace(hop, group=at[hop.group]) for hop in cycle.hops), cycle.between)
            for cycle in self.dependencies.cycles(self.groups(at))
        ]

    def need(self, chosen: Iterable[int]) -> memory.Need:
        """Return what memory a choice needs; nothing where there is no limit."""
        if self.max_memory_bytes is None:
            return memory.Need(0, 0, frozenset())
        return memory.need(self.graph, self.groups(chosen), self.max_memory_bytes)

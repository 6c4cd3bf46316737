"""Regions of a graph that lie in channel blocks together, and what each of them costs."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tvmfuse.passes.layout.planes import Cost

Var = Any  # relax.Var


class Regions:
    """Tensors that hang together by the groups that take and make them in blocks."""

    def __init__(self) -> None:
        self._parents: dict[Var, Var] = {}
        self._costs: list[tuple[Var, Cost]] = []
        self._groups: list[tuple[Var, str]] = []

    def add(self, group: str, result: Var, taken: Iterable[Var], cost: Cost) -> None:
        """Note that a group makes ``result`` in blocks, from what it has ``taken`` in blocks."""
        self._groups.append((result, group))
        self.charge(result, cost)
        for var in taken:
            self.join(result, var)

    def join(self, a: Var, b: Var) -> None:
        """Note that two tensors are of one region."""
        self._parents[self._root(a)] = self._root(b)

    def charge(self, var: Var, cost: Cost) -> None:
        """Add to the cost of the region of ``var``."""
        self._costs.append((var, cost))

    def dearer_in_blocks(self) -> frozenset[str]:
        """Return the groups of all regions that would cost less on planes."""
        totals: dict[Var, Cost] = {}
        for var, cost in self._costs:
            root = self._root(var)
            totals[root] = totals.get(root, Cost()) + cost
        dear = {root for root, cost in totals.items() if cost.planes < cost.blocks}
        return frozenset(group for var, group in self._groups if self._root(var) in dear)

    def _root(self, var: Var) -> Var:
        while (parent := self._parents.get(var, var)) is not var:
            var = parent
        return var

"""Cycles between groups of bindings, once each group is one node."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tvmfuse.plan import FunctionGraph


@dataclass(frozen=True)
class Hop:
    """How a cycle crosses one group: in by one binding, out by another."""

    group: int
    entry: int
    exit: int


class Dependencies:
    """The dependency graph of one function, to be contracted by groups."""

    def __init__(self, graph: FunctionGraph) -> None:
        self._deps = graph.deps
        pairs = [(read, at) for at, reads in enumerate(graph.deps) for read in reads]
        self._edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)

    def way_back(self, bindings: Sequence[int]) -> int | None:
        """Return a binding outside that depends on a group and feeds it, or None.

        Parameters
        ----------
        bindings : Sequence[int]
            The group, ascending.
        """
        inside = set(bindings)
        outside: dict[int, None] = {}
        for at in range(bindings[0], bindings[-1] + 1):
            reads = self._deps[at]
            if at not in inside:
                if any(read in inside or read in outside for read in reads):
                    outside[at] = None
            elif back := [read for read in reads if read in outside]:
                return back[0]
        return None

    def cycles(self, groups: Sequence[Collection[int]]) -> list[tuple[Hop, ...]]:
        """Return short cycles in the contracted graph; none if it is acyclic.

        Parameters
        ----------
        groups : Sequence of collections of int
            Disjoint groups without a way back of their own.

        Returns
        -------
        list of tuple of Hop
            For every group on a cycle, one of its shortest.
        """
        owner = np.arange(len(self._deps)) + len(groups)
        for i, group in enumerate(groups):
            owner[list(group)] = i
        ends = owner[self._edges]
        n_nodes = len(groups) + len(self._deps)
        links = coo_array((np.ones(len(ends)), (ends[:, 0], ends[:, 1])), shape=(n_nodes, n_nodes))
        _, component = connected_components(links.tocsr(), connection="strong")
        size = np.bincount(component, minlength=n_nodes)
        looping = np.flatnonzero(
            (ends[:, 0] != ends[:, 1])
            & (component[ends[:, 0]] == component[ends[:, 1]])
            & (size[component[ends[:, 0]]] > 1)
        )
        after: defaultdict[int, dict[int, tuple[int, int]]] = defaultdict(dict)
        for edge in looping:
            tail, head = ends[edge].tolist()
            after[tail].setdefault(head, tuple(self._edges[edge].tolist()))
        starts = sorted(node for node in after if node < len(groups))
        found = {_canonical(_shortest(after, start, len(groups))) for start in starts}
        return sorted(found, key=lambda cycle: [hop.group for hop in cycle])


def _shortest(
    after: dict[int, dict[int, tuple[int, int]]], start: int, n_groups: int
) -> tuple[Hop, ...]:
    """Return the groups on a shortest cycle through ``start``, in its order."""
    before = {start: start}
    queue = deque([start])
    while queue:
        node = queue.popleft()
        if start in after[node]:
            break
        for head in after[node]:
            if head not in before:
                before[head] = node
                queue.append(head)
    nodes = [node]
    while nodes[-1] != start:
        nodes.append(before[nodes[-1]])
    nodes.reverse()
    return tuple(
        Hop(node, entry=after[last][node][1], exit=after[node][following][0])
        for last, node, following in zip(
            [nodes[-1], *nodes[:-1]], nodes, [*nodes[1:], nodes[0]], strict=True
        )
        if node < n_groups
    )


def _canonical(cycle: tuple[Hop, ...]) -> tuple[Hop, ...]:
    first = min(range(len(cycle)), key=lambda i: cycle[i].group)
    return cycle[first:] + cycle[:first]

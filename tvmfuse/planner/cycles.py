"""Cycles between groups of bindings, once each group is one node.

A group that computes a binding for itself only reads what that binding reads; the
binding's own node stays beside it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

from tvmfuse.plan import Candidate, FunctionGraph


@dataclass(frozen=True)
class Hop:
    """How a cycle crosses one group: in by one binding, out by another."""

    group: int
    entry: int
    exit: int


@dataclass(frozen=True)
class Cycle:
    """Groups that wait for one another.

    Parameters
    ----------
    hops : tuple of Hop
        The groups, in order.
    between : frozenset of int
        Bindings outside of groups that it leads over.
    """

    hops: tuple[Hop, ...]
    between: frozenset[int]


class Dependencies:
    """The dependency graph of one function, to be contracted by groups."""

    def __init__(self, graph: FunctionGraph) -> None:
        self._deps = graph.deps
        pairs = [(read, at) for at, reads in enumerate(graph.deps) for read in reads]
        self._edges = np.array(pairs, dtype=np.int64).reshape(-1, 2)

    def way_back(self, group: Candidate) -> int | None:
        """Return a binding outside that depends on a group and feeds it, or None."""
        inside, given = set(group.bindings), set(group.provides)
        outside: dict[int, None] = {}
        for at in range(group.bindings[0], group.bindings[-1] + 1):
            reads = self._deps[at]
            if at not in inside:
                if any(read in given or read in outside for read in reads):
                    outside[at] = None
            elif back := [read for read in reads if read in outside]:
                return back[0]
        return None

    def reads(self, group: Candidate) -> set[int]:
        """Return the bindings outside of a group that it reads."""
        return {read for at in group.bindings for read in self._deps[at]} - set(group.bindings)

    def readers(self, binding: int) -> tuple[int, ...]:
        """Return the bindings that read one."""
        return self._readers[binding]

    @cached_property
    def _readers(self) -> tuple[tuple[int, ...], ...]:
        readers: list[list[int]] = [[] for _ in self._deps]
        for at, reads in enumerate(self._deps):
            for read in reads:
                readers[read].append(at)
        return tuple(map(tuple, readers))

    def cycles(self, groups: Sequence[Candidate]) -> list[Cycle]:
        """Return short cycles in the contracted graph; none if it is acyclic.

        Parameters
        ----------
        groups : Sequence[Candidate]
            Groups that provide no binding twice, without a way back of their own.

        Returns
        -------
        list of Cycle
            For every group on a cycle, one of its shortest.
        """
        owner = np.arange(len(self._deps)) + len(groups)
        for i, group in enumerate(groups):
            owner[list(group.provides)] = i
        edges, ends = self._contracted(groups, owner)
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
            after[tail].setdefault(head, tuple(edges[edge].tolist()))
        starts = sorted(node for node in after if node < len(groups))
        found = {_canonical(_shortest(after, start, len(groups))) for start in starts}
        return sorted(found, key=lambda cycle: [hop.group for hop in cycle.hops])

    def _contracted(
        self, groups: Sequence[Candidate], owner: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the edges between nodes: as bindings that read and are read, and as nodes."""
        edges, ends = self._edges, owner[self._edges]
        for i, group in enumerate(groups):
            if not group.recomputes:
                continue
            # Its own copies feed it; they read what the bindings read that they copy.
            own = np.isin(edges[:, 0], group.recomputes) & (ends[:, 1] == i)
            pairs = [(r, at) for at in group.recomputes for r in self._deps[at]]
            new = np.array([p for p in pairs if p[0] not in group.bindings], dtype=np.int64)
            new = new.reshape(-1, 2)
            heads = np.full(len(new), i)
            edges = np.concatenate([edges[~own], new])
            ends = np.concatenate([ends[~own], np.stack([owner[new[:, 0]], heads], axis=1)])
        return edges, ends


def _shortest(after: dict[int, dict[int, tuple[int, int]]], start: int, n_groups: int) -> Cycle:
    """Return a shortest cycle through ``start``."""
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
    hops = tuple(
        Hop(node, entry=after[last][node][1], exit=after[node][following][0])
        for last, node, following in zip(
            [nodes[-1], *nodes[:-1]], nodes, [*nodes[1:], nodes[0]], strict=True
        )
        if node < n_groups
    )
    return Cycle(hops, frozenset(node - n_groups for node in nodes if node >= n_groups))


def _canonical(cycle: Cycle) -> Cycle:
    hops = cycle.hops
    first = min(range(len(hops)), key=lambda i: hops[i].group)
    return Cycle(hops[first:] + hops[:first], cycle.between)

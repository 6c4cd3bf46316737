"""How much memory the values between kernels take under a plan."""

from __future__ import annotations

import heapq
import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from tvmfuse.plan import Candidate, FunctionGraph


class _Kernel(NamedTuple):
    """The bindings that a kernel computes, what it reads, and which values it hands on."""

    bindings: tuple[int, ...]
    reads: frozenset[int]
    makes: tuple[int, ...]


class Need(NamedTuple):
    """What values between kernels take.

    Parameters
    ----------
    peak_bytes : int
        The most at any time.
    excess_bytes : int
        What is above a limit, summed over all kernels; 0 where the limit is kept.
    values : frozenset of int
        Bindings whose values are there while the limit is not kept.
    """

    peak_bytes: int
    excess_bytes: int
    values: frozenset[int]


def need(graph: FunctionGraph, groups: Sequence[Candidate], limit_bytes: float = math.inf) -> Need:
    """Find how much memory values between kernels take.

    Kernels run in the order of ``passes.partition``: each as soon as what it reads is
    there, the earlier in the program first. A value lives from the kernel that makes it
    to the last one that reads it; results live to the end. Inputs and weights do not
    count, nor what an allocator loses.

    Parameters
    ----------
    graph : FunctionGraph
        With the sizes of its values.
    groups : Sequence[Candidate]
        The plan; acyclic. What is in no group is a kernel of its own.
    limit_bytes : float
        What they may take.
    """
    order = list(_ordered(graph, _kernels(graph, groups)))
    last_read: dict[int, int] = {}
    for at, kernel in enumerate(order):
        for read in kernel.reads:
            last_read.update(dict.fromkeys(_storage(graph, read), at))
    for result in graph.results:
        last_read.update(dict.fromkeys(_storage(graph, result), len(order)))
    live: set[int] = set()
    values: set[int] = set()
    n_bytes = peak = excess = 0
    dying: defaultdict[int, list[int]] = defaultdict(list)
    for at, kernel in enumerate(order):
        for binding in kernel.makes:
            n_bytes += graph.n_bytes[binding]
            live.add(binding)
            dying[max(at, last_read.get(binding, at))].append(binding)
        peak = max(peak, n_bytes)
        if n_bytes > limit_bytes:
            excess += n_bytes - int(limit_bytes)
            values |= live
        n_bytes -= sum(graph.n_bytes[binding] for binding in dying[at])
        live.difference_update(dying[at])
    return Need(peak, excess, frozenset(values))


def _kernels(graph: FunctionGraph, groups: Sequence[Candidate]) -> list[_Kernel]:
    """Return the groups and every binding outside of them, without what nobody needs."""
    parts = [(group.bindings, group.provides) for group in groups]
    covered = {binding for _, provides in parts for binding in provides}
    parts += [((i,), (i,)) for i in range(len(graph.deps)) if i not in covered]
    reads = [
        frozenset(r for i in bindings for r in graph.deps[i]) - set(bindings)
        for bindings, _ in parts
    ]
    maker = {binding: i for i, (_, provides) in enumerate(parts) for binding in provides}
    needed, values = set[int](), set(graph.results)
    open_ = list(values)
    while open_:
        kernel = maker[open_.pop()]
        if kernel not in needed:
            needed.add(kernel)
            open_ += reads[kernel] - values
            values |= reads[kernel]
    return [
        _Kernel(bindings, reads[i], tuple(b for b in provides if b in values))
        for i, (bindings, provides) in enumerate(parts)
        if i in needed
    ]


def _ordered(graph: FunctionGraph, kernels: Sequence[_Kernel]) -> Iterator[_Kernel]:
    """Yield kernels so that each follows what it reads, else in program order."""
    maker = {binding: i for i, kernel in enumerate(kernels) for binding in kernel.makes}
    waits = [{maker[read] for read in kernel.reads} for kernel in kernels]
    readers: defaultdict[int, list[int]] = defaultdict(list)
    for i, makers in enumerate(waits):
        for j in makers:
            readers[j].append(i)
    ready = [(kernels[i].bindings[0], i) for i, makers in enumerate(waits) if not makers]
    heapq.heapify(ready)
    while ready:
        _, i = heapq.heappop(ready)
        yield kernels[i]
        for reader in readers[i]:
            waits[reader].discard(i)
            if not waits[reader]:
                heapq.heappush(ready, (kernels[reader].bindings[0], reader))


def _storage(graph: FunctionGraph, binding: int) -> set[int]:
    """Return the bindings whose memory a value lies in: a view has none of its own."""
    if graph.n_bytes[binding]:
        return {binding}
    return {value for read in graph.deps[binding] for value in _storage(graph, read)}

"""Connected elementwise operators, as large as they get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Generator, Match
from tvmfuse.patterns.dataflow import Dataflow

_MAX_OPERATORS = 24


class Elementwise(Generator):
    """Maximal connected sets of elementwise and broadcast operators.

    Each operator gets a *stage*, the number of other operators on the longest way
    to it. Operators of one stage that are connected can never have anything else
    between them, so every such set is convex, and no two of them form a cycle.
    """

    name = "elementwise"
    is_multi_output = True

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield the sets over all operators, then over those nobody else wants."""
        able = {i for i in range(len(flow.bindings)) if _is_able(flow, i)}
        seen: set[tuple[int, ...]] = set()
        for members in (able, able - taken):
            early = _stages(flow, members)
            for stages in (early, _delayed(flow, members, early)):
                for part in _parts(flow, members, stages):
                    if part not in seen:
                        seen.add(part)
                        yield Match(part, "elementwise")


def _is_able(flow: Dataflow, position: int) -> bool:
    return flow.kinds[position] in ("elementwise", "broadcast") and flow.groupable[position]


def _stages(flow: Dataflow, members: Set[int]) -> list[int]:
    """Number each binding by the non-members on the longest way to it."""
    stages: list[int] = []
    for reads in flow.deps:
        stages.append(max((stages[read] + (read not in members) for read in reads), default=0))
    return stages


def _delayed(flow: Dataflow, members: Set[int], stages: Sequence[int]) -> list[int]:
    """Move each member to the stage of its first reader, so that it can join it."""
    delayed = list(stages)
    for position in reversed(range(len(stages))):
        if position in members and flow.users[position]:
            delayed[position] = min(delayed[user] for user in flow.users[position])
    return delayed


def _parts(flow: Dataflow, members: Set[int], stages: Sequence[int]) -> Iterator[tuple[int, ...]]:
    """Yield the connected sets of two or more members of one stage and block."""
    part_of: dict[int, list[int]] = {}
    for position in sorted(members):
        part = [position]
        for read in flow.deps[position]:
            if read not in members or stages[read] != stages[position]:
                continue
            if flow.block_of[read] != flow.block_of[position] or part_of[read] is part:
                continue
            part = _joined(part_of, part_of[read], part)
        for member in part:
            part_of[member] = part
    whole = {id(part): part for part in part_of.values()}
    for part in whole.values():
        for members_of_kernel in _same_loops(flow, sorted(part)):
            yield from _capped(members_of_kernel)


def _same_loops(flow: Dataflow, part: list[int]) -> list[list[int]]:
    """Split a part by shape where its results have several shapes.

    One loop nest writes results of one shape. Along a path shapes only grow, so the
    members of one shape are convex too.
    """
    if len({operators.shape(flow.value(i)) for i in flow.outputs(part)}) == 1:
        return [part]
    by_shape: dict[object, list[int]] = {}
    for member in part:
        by_shape.setdefault(operators.shape(flow.value(member)), []).append(member)
    return list(by_shape.values())


def _joined(part_of: dict[int, list[int]], left: list[int], right: list[int]) -> list[int]:
    """Merge the smaller part into the larger one."""
    small, large = sorted((left, right), key=len)
    large.extend(small)
    for member in small:
        part_of[member] = large
    return large


def _capped(part: list[int]) -> Iterator[tuple[int, ...]]:
    """Cut a part into runs of bounded size; in program order each stays convex."""
    for start in range(0, len(part), _MAX_OPERATORS):
        run = part[start : start + _MAX_OPERATORS]
        if len(run) > 1:
            yield tuple(run)

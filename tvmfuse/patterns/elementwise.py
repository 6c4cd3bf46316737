"""Connected elementwise operators, as large as they get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np
from scipy.special import expit

from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow

_MAX_OPERATORS = 24


def _tree(op: Any, x: Any, y: Any, z: Any) -> Any:
    left = op.multiply(op.exp(x), y)
    right = op.subtract(op.sigmoid(z), x)
    return op.maximum(left, right)


def _tree_reference(x: Any, y: Any, z: Any) -> Any:
    return np.maximum(np.exp(x) * y, expit(z) - x)


def _three_results(op: Any, x: Any, y: Any) -> Any:
    total = op.add(x, y)
    return op.nn.relu(total), op.tanh(total), total


def _three_results_reference(x: Any, y: Any) -> Any:
    return np.maximum(x + y, 0), np.tanh(x + y), x + y


def _stretched_chain(op: Any, x: Any, y: Any) -> Any:
    return op.add(op.sqrt(op.abs(y)), op.negative(x))


def _stretched_chain_reference(x: Any, y: Any) -> Any:
    return np.sqrt(np.abs(y)) - x


def _through_a_sum(op: Any, x: Any) -> Any:
    raised = op.exp(x)
    return op.divide(raised, op.sum(raised, axis=[1], keepdims=True))


def _unconnected(op: Any, x: Any, y: Any) -> Any:
    return op.exp(x), op.tanh(y)


def _cases() -> tuple[Case, ...]:
    whole, row = Operand((3, 4, 5)), Operand((4, 1))
    return (
        Case("a tree", {"x": whole, "y": row, "z": whole}, {}, _tree, _tree_reference),
        Case(
            "three results", {"x": whole, "y": whole}, {}, _three_results, _three_results_reference
        ),
        Case(
            "a small chain stretched at its end",
            {"x": whole, "y": row},
            graph=_stretched_chain,
            reference=_stretched_chain_reference,
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    operands = {"x": Operand((3, 4)), "y": Operand((3, 4))}
    return (
        Case("a sum lies between two of them", operands, graph=_through_a_sum),
        Case("they share nothing", operands, graph=_unconnected),
    )


class Elementwise(Generator):
    """Maximal connected sets of elementwise and broadcast operators.

    Each operator gets a *stage*, the number of other operators on the longest way
    to it. Operators of one stage that are connected can never have anything else
    between them, so every such set is convex, and no two of them form a cycle.
    """

    name = "elementwise"
    is_multi_output = True
    cases = _cases()
    near_misses = _near_misses()

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
        part_of[position] = [position]
        for read in flow.deps[position]:
            is_near = read in members and flow.block_of[read] == flow.block_of[position]
            if is_near and stages[read] == stages[position]:
                _join(part_of, part_of[read], part_of[position])
    whole = {id(part): part for part in part_of.values()}
    for part in whole.values():
        for members_of_kernel in _same_loops(flow, sorted(part)):
            yield from _capped(members_of_kernel)


def _same_loops(flow: Dataflow, part: list[int]) -> list[list[int]]:
    """Split a part by shape where its results have several shapes.

    One loop nest writes results of one shape. Along a path shapes only grow, so the
    members of one shape are convex too.
    """
    if len({operators.shape(flow.value(i)) for i in flow.outputs(part)}) <= 1:
        return [part]
    by_shape: dict[object, list[int]] = {}
    for member in part:
        by_shape.setdefault(operators.shape(flow.value(member)), []).append(member)
    return list(by_shape.values())


def _join(part_of: dict[int, list[int]], left: list[int], right: list[int]) -> None:
    """Merge the smaller part into the larger one."""
    if left is right:
        return
    small, large = sorted((left, right), key=len)
    large.extend(small)
    for member in small:
        part_of[member] = large


def _capped(part: list[int]) -> Iterator[tuple[int, ...]]:
    """Cut a part into runs of bounded size; in program order each stays convex."""
    for start in range(0, len(part), _MAX_OPERATORS):
        run = part[start : start + _MAX_OPERATORS]
        if len(run) > 1:
            yield tuple(run)

"""Connected elementwise operators and moves, as large as they get."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import replace
from typing import Any

import numpy as np
from scipy.special import expit

from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow

_MAX_OPERATORS = 24

# What only says where elements come from. Gathering may be asked for elements that are not
# there, by indices that are computed.
_MOVES = frozenset(
    [
        "broadcast_to",
        "concat",
        "flip",
        "image.resize2d",
        "nn.pad",
        "permute_dims",
        "repeat",
        "stack",
        "strided_slice",
        "tile",
    ]
)


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


def _joined_and_scaled(op: Any, x: Any, y: Any, gain: Any) -> Any:
    joined = op.concat([x, y], axis=1)
    return joined, op.nn.relu(op.multiply(joined, gain))


def _joined_and_scaled_reference(x: Any, y: Any, gain: Any) -> Any:
    joined = np.concatenate([x, y], axis=1)
    return joined, np.maximum(joined * gain, 0)


def _gates(op: Any, x: Any) -> Any:
    gates = [op.strided_slice(x, [1], [8 * i], [8 * i + 8]) for i in range(3)]
    padded = op.nn.pad(op.multiply(op.sigmoid(gates[0]), op.tanh(gates[1])), (0, 0, 2, 3))
    return op.add(padded, op.nn.pad(gates[2], (0, 0, 5, 0)))


def _gates_reference(x: Any) -> Any:
    padded = np.pad(expit(x[:, :8]) * np.tanh(x[:, 8:16]), ((0, 0), (2, 3)))
    return padded + np.pad(x[:, 16:], ((0, 0), (5, 0)))


def _half_turn(op: Any, x: Any, cos: Any, sin: Any) -> Any:
    low = op.strided_slice(x, [-1], [0], [16])
    high = op.strided_slice(x, [-1], [16], [32])
    turned = op.concat([op.negative(high), low], axis=-1)
    return op.add(op.multiply(x, cos), op.multiply(turned, sin))


def _half_turn_reference(x: Any, cos: Any, sin: Any) -> Any:
    return x * cos + np.concatenate([-x[..., 16:], x[..., :16]], axis=-1) * sin


def _through_a_sum(op: Any, x: Any) -> Any:
    raised = op.exp(x)
    return op.divide(raised, op.sum(raised, axis=[1], keepdims=True))


def _unconnected(op: Any, x: Any, y: Any) -> Any:
    return op.exp(x), op.tanh(y)


def _casts(op: Any, x: Any, y: Any) -> Any:
    whole = op.astype(op.astype(x, "int32"), str(x.ty.dtype))
    return op.multiply(whole, y)


def _casts_reference(x: Any, y: Any) -> Any:
    return np.trunc(x) * y


def _of_two_shapes(op: Any, x: Any, y: Any) -> Any:
    raised = op.exp(x)
    return op.tanh(raised), op.add(raised, y)


def _mirrored(op: Any, x: Any) -> Any:
    return op.exp(op.nn.pad(x, (0, 0, 1, 1), pad_mode="reflect"))


def _interpolated(op: Any, x: Any) -> Any:
    return op.exp(op.image.resize2d(x, (6, 8), method="linear"))


def _cases() -> tuple[Case, ...]:
    whole, row = Operand((3, 4, 5)), Operand((4, 1))
    return (
        Case(
            "a chain of casts",
            {"x": replace(whole, spread=9.0), "y": row},
            graph=_casts,
            reference=_casts_reference,
        ),
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


def _moving_cases() -> tuple[Case, ...]:
    whole, row = Operand((3, 7, 32)), Operand((7, 32))
    return (
        Case(
            "two tensors joined, then scaled, and both results wanted",
            {"x": Operand((2, 6, 9)), "y": Operand((2, 3, 9)), "gain": Operand((9, 1))},
            graph=_joined_and_scaled,
            reference=_joined_and_scaled_reference,
        ),
        Case(
            "slices of one tensor, padded",
            {"x": Operand((3, 24))},
            graph=_gates,
            reference=_gates_reference,
        ),
        Case(
            "halves turned by an angle",
            {"x": whole, "cos": row, "sin": row},
            graph=_half_turn,
            reference=_half_turn_reference,
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    operands = {"x": Operand((3, 4)), "y": Operand((3, 4))}
    return (
        Case("a sum lies between two of them", operands, graph=_through_a_sum),
        Case("they share nothing", operands, graph=_unconnected),
        Case(
            "their results have two shapes",
            {"x": Operand((3, 4)), "y": Operand((2, 3, 4))},
            graph=_of_two_shapes,
        ),
        Case("padding mirrors the edge", operands, graph=_mirrored),
        Case("pixels are interpolated", {"x": Operand((1, 2, 3, 4))}, graph=_interpolated),
    )


class Elementwise(Generator):
    """Maximal connected sets of elementwise operators (also casts), with the moves around them.

    A move (a concatenation, a slice, padding, a transpose) becomes the index at which the
    operator after it reads, or one more result of the same loops.

    Each operator gets a *stage*, the number of other operators on the longest way
    to it. Operators of one stage that are connected can never have anything else
    between them, so every such set is convex, and no two of them form a cycle.
    """

    name = "elementwise"
    is_multi_output = True
    cases = (*_cases(), *_moving_cases())
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield the sets over all operators, then over those nobody else wants.

        Only the latter with moves: what follows an anchor costs least in its registers.
        """
        able = {i for i in range(len(flow.bindings)) if is_able(flow, i)}
        moving = able | {i for i in range(len(flow.bindings)) if is_move(flow, i)}
        seen: set[tuple[int, ...]] = set()
        for members in (able, able - taken, moving - taken):
            early = _stages(flow, members)
            for stages in (early, _delayed(flow, members, early)):
                for are_siblings in (False, True):
                    for part in _parts(flow, members, stages, are_siblings=are_siblings):
                        if part not in seen:
                            seen.add(part)
                            yield Match(part, "elementwise")


def is_able(flow: Dataflow, position: int) -> bool:
    """Whether an operator computes each element of its result from those at one place."""
    return flow.kinds[position] in ("elementwise", "broadcast") and flow.groupable[position]


def is_move(flow: Dataflow, position: int) -> bool:
    """Whether an operator copies elements from places that the compiler knows."""
    name = flow.operators[position].removeprefix("relax.")
    if name not in _MOVES or not flow.groupable[position]:
        return False
    attrs = flow.value(position).attrs
    if name == "image.resize2d":
        return str(attrs.method) == "nearest_neighbor"
    return name != "nn.pad" or str(attrs.pad_mode) == "constant"


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


def _parts(
    flow: Dataflow, members: Set[int], stages: Sequence[int], *, are_siblings: bool
) -> Iterator[tuple[int, ...]]:
    """Yield the connected sets of two or more members of one stage and block.

    Siblings, which read one tensor and have one shape, count as connected if wanted.
    """
    part_of: dict[int, list[int]] = {}
    reader_of: dict[object, int] = {}
    for position in sorted(members):
        part_of[position] = [position]
        place = stages[position], flow.block_of[position]
        for read in flow.deps[position]:
            if read in members and (stages[read], flow.block_of[read]) == place:
                _join(part_of, part_of[read], part_of[position])
            elif are_siblings:
                key = (read, *place, flow.shapes[position])
                _join(part_of, part_of[reader_of.setdefault(key, position)], part_of[position])
    whole = {id(part): part for part in part_of.values()}
    for part in whole.values():
        for members_of_kernel in _same_loops(flow, sorted(part)):
            yield from _capped(members_of_kernel)


def _same_loops(flow: Dataflow, part: list[int]) -> Iterator[list[int]]:
    """Split a part where its results have several shapes, for one nest writes one shape.

    What leads to results of one shape only is closed under its readers, and so convex;
    what is left leads to all of them, and is split in turn.
    """
    leads: dict[int, set[object]] = {}
    inside, outputs = set(part), set(flow.outputs(part))
    for member in reversed(part):
        shapes = {flow.shapes[member]} if member in outputs else set()
        leads[member] = shapes.union(
            *(leads[user] for user in flow.users[member] if user in inside)
        )
    by_shape: dict[object, list[int]] = {}
    for member in part:
        if len(leads[member]) == 1:
            by_shape.setdefault(next(iter(leads[member])), []).append(member)
    yield from by_shape.values()
    left = [member for member in part if len(leads[member]) > 1]
    if left:
        yield from _same_loops(flow, left)


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

"""Rotary position embedding of queries and keys.

Models write it by halves (Llama, GPT-NeoX), by pairs (GPT-J), on all of a head or on its
first part, as ``x * cos + rotated(x) * sin`` or as the two products of a complex number.
All of them slice ``x``, multiply and add element by element, and join the parts again:
that is what is looked for, and one pass over ``x`` is what it becomes. Query and key that
share their angles are one kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Generator, Match
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.rope_examples import CASES, NEAR_MISSES

_CONCAT, _SLICE, _PERMUTE = "relax.concat", "relax.strided_slice", "relax.permute_dims"
_RESHAPE = "relax.reshape"
_ARITHMETIC = ("relax.multiply", "relax.add", "relax.subtract")
_MAX_OPERATORS = 24
_MAX_DISTANCE = 64


class Rope(Generator):
    """The rotation of one tensor, or those of a query and a key by the same angles."""

    name = "rope"
    is_multi_output = True
    cases = CASES
    near_misses = NEAR_MISSES

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each rotation, with the transposition before it, and pairs of them."""
        rotations: dict[tuple[int, ...], _Rotation] = {}
        for position, operator in enumerate(flow.operators):
            if operator == _CONCAT and _is_last_axis(flow.value(position)):
                for end in _ends(flow, position):
                    found = _rotation(flow, end)
                    if found is not None:
                        rotations[found.members] = found
        for found in rotations.values():
            yield Match(found.members, "elementwise")
            if found.transposed:
                yield Match(found.transposed, "elementwise")
        for left, right in pairwise(rotations.values()):
            if _are_siblings(left, right):
                wide = _joined(left.transposed or left.members, right.transposed or right.members)
                for members in dict.fromkeys((_joined(left.members, right.members), wide)):
                    yield Match(members, "joined")


@dataclass(frozen=True)
class _Rotation:
    """A rotation, also with the transposition of what is rotated, and what else it reads."""

    members: tuple[int, ...]
    transposed: tuple[int, ...]
    angles: frozenset[Any]


def _are_siblings(left: _Rotation, right: _Rotation) -> bool:
    """Whether two rotations by the same angles stand near each other."""
    return (
        right.members[0] - left.members[-1] <= _MAX_DISTANCE
        and bool(left.angles & right.angles)
        and not set(left.members) & set(right.members)
    )


def _joined(left: Sequence[int], right: Sequence[int]) -> tuple[int, ...]:
    return tuple(sorted((*left, *right)))


def _ends(flow: Dataflow, concat: int) -> Iterator[int]:
    """Yield where a rotation around a concatenation may end, the nearest first."""
    yield concat
    end = concat
    for _ in range(4):
        users = flow.users[end]
        if len(users) != 1 or end in flow.escaping:
            return
        (user,) = users
        is_join = flow.operators[user] == _CONCAT and _is_last_axis(flow.value(user))
        if not is_join and flow.operators[user] not in (*_ARITHMETIC, _RESHAPE):
            return
        end = user
        if is_join or flow.operators[end] == "relax.add":
            yield end


def _rotation(flow: Dataflow, end: int) -> _Rotation | None:
    """Return the rotation that ends at a binding, if all that it slices is one tensor."""
    sources = {flow.value(i).args[0] for i in _slices_before(flow, end)}
    sources -= {flow.var(i) for i in _slices_before(flow, end)}
    if len(sources) != 1:
        return None
    (x,) = sources
    members: set[int] = {end}
    waiting = set(flow.deps[end])
    while waiting and len(members) < _MAX_OPERATORS:
        position = max(waiting)
        waiting.remove(position)
        is_private = set(flow.users[position]) <= members and position not in flow.escaping
        if is_private and not flow.var(position).same_as(x) and _is_part(flow, position):
            members.add(position)
            waiting.update(flow.deps[position])
    if not _is_rotation([flow.operators[i] for i in members]):
        return None
    read = {tensor for i in members for tensor in operators.tensors(flow.value(i))}
    if x not in read:
        return None
    ordered, turn = tuple(sorted(members)), flow.position.get(x)
    transposed: tuple[int, ...] = ()
    if turn is not None and _is_transposition_for(flow, turn, members):
        transposed = tuple(sorted((*ordered, turn)))
    angles = read - {x, *(flow.var(i) for i in members)}
    return _Rotation(ordered, transposed, frozenset(angles))


def _is_rotation(names: Sequence[str]) -> bool:
    """Whether operators slice a tensor in two, multiply and join."""
    return names.count(_SLICE) > 1 and {"relax.multiply", _CONCAT} <= set(names)


def _is_transposition_for(flow: Dataflow, position: int, members: Set[int]) -> bool:
    """Whether a binding only moves axes, for ``members`` alone."""
    return (
        flow.operators[position] == _PERMUTE
        and flow.groupable[position]
        and position not in flow.escaping
        and set(flow.users[position]) <= members
    )


def _slices_before(flow: Dataflow, end: int) -> set[int]:
    """Return the slices of the last axis that a binding is computed from, not far away."""
    found: set[int] = set()
    seen = {end}
    waiting = {end}
    while waiting and len(seen) < _MAX_OPERATORS:
        position = max(waiting)
        waiting.remove(position)
        for read in flow.deps[position]:
            if read in seen or not _is_part(flow, read):
                continue
            seen.add(read)
            waiting.add(read)
            if flow.operators[read] == _SLICE:
                found.add(read)
    return found


def _is_part(flow: Dataflow, position: int) -> bool:
    """Whether a rotation may hold an operator: slices and joins of the last axis, arithmetic."""
    operator, call = flow.operators[position], flow.value(position)
    if operator == _RESHAPE:
        return True
    if not flow.groupable[position]:
        return False
    if operator == _CONCAT:
        return _is_last_axis(call)
    if operator == _SLICE:
        shape, whole = operators.shape(call), operators.shape(call.args[0])
        return shape is not None and whole is not None and shape[:-1] == whole[:-1]
    return operator in (*_ARITHMETIC, "relax.negative")


def _is_last_axis(concat: Any) -> bool:
    rank = int(concat.ty.ndim)
    return concat.attrs.axis is not None and int(concat.attrs.axis) % rank == rank - 1

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

import numpy as np

from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow

_CONCAT, _SLICE, _PERMUTE = "relax.concat", "relax.strided_slice", "relax.permute_dims"
_RESHAPE = "relax.reshape"
_ARITHMETIC = ("relax.multiply", "relax.add", "relax.subtract")
_MAX_OPERATORS = 24
_MAX_DISTANCE = 64


def _sliced(op: Any, x: Any, begin: int, end: int, step: int = 1) -> Any:
    rank = len(x.ty.shape)
    return op.strided_slice(x, axes=[rank - 1], begin=[begin], end=[end], strides=[step])


def _width(x: Any) -> int:
    return int(x.ty.shape[-1])


def _by_halves(op: Any, x: Any, cos: Any, sin: Any) -> Any:
    half = _width(x) // 2
    turned = op.negative(_sliced(op, x, half, 2 * half))
    rotated = op.concat([turned, _sliced(op, x, 0, half)], axis=-1)
    return op.add(op.multiply(x, cos), op.multiply(rotated, sin))


def _by_halves_reference(x: Any, cos: Any, sin: Any) -> Any:
    half = x.shape[-1] // 2
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin


def _by_pairs(op: Any, x: Any, cos: Any, sin: Any) -> Any:
    width = _width(x)
    even, odd = _sliced(op, x, 0, width, 2), _sliced(op, x, 1, width, 2)
    lead = [int(d) for d in x.ty.shape][:-1]
    columns = [op.reshape(part, (*lead, width // 2, 1)) for part in (op.negative(odd), even)]
    rotated = op.reshape(op.concat(columns, axis=-1), (*lead, width))
    return op.add(op.multiply(x, cos), op.multiply(rotated, sin))


def _by_pairs_reference(x: Any, cos: Any, sin: Any) -> Any:
    rotated = np.stack([-x[..., 1::2], x[..., ::2]], -1).reshape(x.shape)
    return x * cos + rotated * sin


def _complex(op: Any, x: Any, c: Any, s: Any) -> Any:
    half = _width(x) // 2
    real, imaginary = _sliced(op, x, 0, half), _sliced(op, x, half, 2 * half)
    first = op.subtract(op.multiply(real, c), op.multiply(imaginary, s))
    second = op.add(op.multiply(real, s), op.multiply(imaginary, c))
    return op.concat([first, second], axis=-1)


def _complex_reference(x: Any, c: Any, s: Any) -> Any:
    real, imaginary = np.split(x, 2, -1)
    return np.concatenate([real * c - imaginary * s, real * s + imaginary * c], -1)


def _in_part(op: Any, x: Any, c: Any, s: Any) -> Any:
    width, part = _width(x), 2 * _width(c)
    turned = _complex(op, _sliced(op, x, 0, part), c, s)
    return op.concat([turned, _sliced(op, x, part, width)], axis=-1)


def _in_part_reference(x: Any, c: Any, s: Any) -> Any:
    part = 2 * c.shape[-1]
    return np.concatenate([_complex_reference(x[..., :part], c, s), x[..., part:]], -1)


def _query_and_key(op: Any, q: Any, k: Any, cos: Any, sin: Any) -> Any:
    return tuple(_by_halves(op, op.permute_dims(x, axes=[0, 2, 1, 3]), cos, sin) for x in (q, k))


def _query_and_key_reference(q: Any, k: Any, cos: Any, sin: Any) -> Any:
    return tuple(_by_halves_reference(x.transpose(0, 2, 1, 3), cos, sin) for x in (q, k))


def _rotated_too(op: Any, x: Any, cos: Any, sin: Any) -> Any:
    half = _width(x) // 2
    turned = op.negative(_sliced(op, x, half, 2 * half))
    rotated = op.concat([turned, _sliced(op, x, 0, half)], axis=-1)
    return op.add(op.multiply(x, cos), op.multiply(rotated, sin)), op.exp(rotated)


def _of_two_tensors(op: Any, x: Any, y: Any, cos: Any, sin: Any) -> Any:
    half = _width(x) // 2
    turned = op.negative(_sliced(op, y, half, 2 * half))
    rotated = op.concat([turned, _sliced(op, x, 0, half)], axis=-1)
    return op.add(op.multiply(x, cos), op.multiply(rotated, sin))


def _along_rows(op: Any, x: Any, cos: Any, sin: Any) -> Any:
    rows = int(x.ty.shape[2])
    parts = [
        op.strided_slice(x, axes=[2], begin=[begin], end=[begin + rows // 2])
        for begin in (rows // 2, 0)
    ]
    rotated = op.concat([op.negative(parts[0]), parts[1]], axis=2)
    return op.add(op.multiply(x, cos), op.multiply(rotated, sin))


_HEADS = {
    "x": Operand((2, 3, 6, 8)),
    "cos": Operand((1, 1, 6, 8)),
    "sin": Operand((1, 1, 6, 8)),
}
_ANGLES = {
    "x": Operand((2, 3, 5, 8)),
    "c": Operand((5, 4), is_constant=True),
    "s": Operand((5, 4), is_constant=True),
}


class Rope(Generator):
    """The rotation of one tensor, or those of a query and a key by the same angles."""

    name = "rope"
    is_multi_output = True
    cases = (
        Case("by halves", _HEADS, graph=_by_halves, reference=_by_halves_reference),
        Case("by pairs", _HEADS, graph=_by_pairs, reference=_by_pairs_reference),
        Case(
            "as a complex number, by constant angles",
            _ANGLES,
            graph=_complex,
            reference=_complex_reference,
        ),
        Case(
            "of the first part of a head",
            {**_ANGLES, "x": Operand((2, 3, 5, 11))},
            graph=_in_part,
            reference=_in_part_reference,
        ),
        Case(
            "query and key of fewer heads, transposed",
            {**_HEADS, "q": Operand((2, 6, 4, 8)), "k": Operand((2, 6, 2, 8))},
            graph=_query_and_key,
            reference=_query_and_key_reference,
        ),
    )
    near_misses = (
        Case("the rotated tensor is read elsewhere", _HEADS, graph=_rotated_too),
        Case(
            "parts of two tensors are joined", {**_HEADS, "y": _HEADS["x"]}, graph=_of_two_tensors
        ),
        Case("the halves are rows", _HEADS, graph=_along_rows),
    )

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
                yield Match(_joined(left.members, right.members), "joined")
                wide = _joined(left.transposed or left.members, right.transposed or right.members)
                if left.transposed or right.transposed:
                    yield Match(wide, "joined")


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

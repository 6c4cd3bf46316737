"""Readers with the cheap operators and moves that lead to them alone.

What is transposed, joined or padded on its way to a sum or a reduction is read from
where it came from.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from typing import Any

import numpy as np

from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.elementwise import is_able, is_move

_MAX_OPERATORS = 12
_REDUCTIONS = frozenset(f"relax.{name}" for name in ("max", "mean", "min", "sum"))


def _turned_and_summed(op: Any, x: Any, y: Any) -> Any:
    turned = op.permute_dims(op.nn.relu(op.add(x, y)), [1, 0])
    return op.max(turned, axis=[-1])


def _turned_and_summed_reference(x: Any, y: Any) -> Any:
    return np.maximum(x + y, 0).max(0)


def _joined_and_added(op: Any, x: Any, y: Any, z: Any) -> Any:
    return op.add(op.concat([op.permute_dims(x, [1, 0]), y], axis=0), z)


def _joined_and_added_reference(x: Any, y: Any, z: Any) -> Any:
    return np.concatenate([x.T, y]) + z


def _without_a_move(op: Any, x: Any) -> Any:
    return op.sum(op.exp(x), axis=[-1])


def _behind_a_product(op: Any, x: Any) -> Any:
    return op.exp(op.permute_dims(op.matmul(x, x), [1, 0]))


def _into_a_product(op: Any, x: Any) -> Any:
    return op.matmul(op.permute_dims(x, [1, 0]), x)


def _read_twice(op: Any, x: Any) -> Any:
    turned = op.permute_dims(x, [1, 0])
    return op.add(turned, x), op.sum(turned, axis=[-1])


def _returned(op: Any, x: Any) -> Any:
    turned = op.permute_dims(x, [1, 0])
    return op.add(turned, x), turned


def _cases() -> tuple[Case, ...]:
    return (
        Case(
            "a maximum over what is transposed",
            {"x": Operand((6, 40)), "y": Operand((6, 1))},
            graph=_turned_and_summed,
            reference=_turned_and_summed_reference,
        ),
        Case(
            "a sum with what is transposed and joined",
            {"x": Operand((8, 5)), "y": Operand((1, 8)), "z": Operand((6, 8))},
            graph=_joined_and_added,
            reference=_joined_and_added_reference,
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    square = {"x": Operand((4, 4))}
    return (
        Case("nothing is moved", square, graph=_without_a_move),
        Case("a product leads to it", square, graph=_behind_a_product),
        Case("a product reads it", square, graph=_into_a_product),
        Case("what is moved is read elsewhere", square, graph=_read_twice),
        Case("what is moved is returned", square, graph=_returned),
    )


class Prologue(Generator):
    """An elementwise operator or a reduction, with what is moved on the way to it alone."""

    name = "prologue"
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each reader with all that leads to it, where that holds a move."""
        for reader in readers(flow):
            members = leading(
                flow,
                reader,
                is_wanted=lambda read, inside: (
                    read not in flow.escaping and inside >= set(flow.users[read])
                ),
            )
            if any(is_move(flow, member) for member in members):
                yield Match(members, operators.family(flow.value(reader)))


def readers(flow: Dataflow) -> Iterator[int]:
    """Yield the bindings that can take along what leads to them."""
    for position, operator in enumerate(flow.operators):
        is_reduction = operator in _REDUCTIONS and flow.groupable[position]
        if is_reduction or is_able(flow, position):
            yield position


def leading(
    flow: Dataflow, reader: int, *, is_wanted: Callable[[int, Set[int]], bool]
) -> tuple[int, ...]:
    """Return a reader and cheap operators that lead to it, the nearest ones first.

    Parameters
    ----------
    flow : Dataflow
        The function.
    reader : int
        Where it ends.
    is_wanted : callable
        Whether an operator may join the members that there are.
    """
    members, open_ = {reader}, [reader]
    while open_:
        for read in flow.deps[open_.pop(0)]:
            is_cheap = is_able(flow, read) or is_move(flow, read)
            is_new = read not in members and flow.block_of[read] == flow.block_of[reader]
            is_room = len(members) < _MAX_OPERATORS
            if is_cheap and is_new and is_room and is_wanted(read, members):
                members.add(read)
                open_.append(read)
    return tuple(sorted(members))

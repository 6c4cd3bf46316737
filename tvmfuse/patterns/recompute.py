"""Readers with the cheap operators that lead to them, computed again where others read them.

A mask, a cast or a tensor that is stretched from a small one costs less to compute in
each of its readers than to store and to read back; whether it does, the planner decides.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import numpy as np

from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.elementwise import is_able, is_move

_MAX_OPERATORS = 12
_REDUCTIONS = frozenset(f"relax.{name}" for name in ("max", "mean", "min", "sum"))


def _stretched(op: Any, x: Any, y: Any, z: Any) -> Any:
    return op.add(z, op.exp(op.add(x, y)))


def _stretched_reference(x: Any, y: Any, z: Any) -> Any:
    return z + np.exp(x + y)


def _summed(op: Any, x: Any, y: Any) -> Any:
    return op.sum(op.multiply(op.negative(x), y), axis=[-1])


def _summed_reference(x: Any, y: Any) -> Any:
    return (-x * y).sum(-1)


def _behind_a_product(op: Any, x: Any) -> Any:
    return op.exp(op.matmul(x, x))


def _into_a_product(op: Any, x: Any) -> Any:
    return op.matmul(x, op.exp(x))


def _cases() -> tuple[Case, ...]:
    return (
        Case(
            "a small tensor, stretched",
            {"x": Operand((5, 1)), "y": Operand((1, 7)), "z": Operand((3, 5, 7))},
            graph=_stretched,
            reference=_stretched_reference,
        ),
        Case(
            "the terms of a sum",
            {"x": Operand((6, 40)), "y": Operand((6, 1))},
            graph=_summed,
            reference=_summed_reference,
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    square = {"x": Operand((4, 4))}
    return (
        Case("a product leads to it", square, graph=_behind_a_product),
        Case("a product reads it", square, graph=_into_a_product),
    )


class Recompute(Generator):
    """An elementwise operator or a reduction, with what is cheap and leads to it."""

    name = "recompute"
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each reader of a value that others read, too, with all that leads there."""
        for reader, operator in enumerate(flow.operators):
            is_reduction = operator in _REDUCTIONS and flow.groupable[reader]
            if not is_reduction and not is_able(flow, reader):
                continue
            members = _leading(flow, reader)
            if len(members) > 1:
                yield Match(members, operators.family(flow.value(reader)))


def _leading(flow: Dataflow, reader: int) -> tuple[int, ...]:
    """Return a reader and the cheap operators that lead to it, the nearest ones first."""
    members, open_ = {reader}, [reader]
    while open_:
        for read in flow.deps[open_.pop(0)]:
            is_cheap = is_able(flow, read) or is_move(flow, read)
            is_new = read not in members and flow.block_of[read] == flow.block_of[reader]
            if is_cheap and is_new and len(members) < _MAX_OPERATORS:
                members.add(read)
                open_.append(read)
    return tuple(sorted(members))

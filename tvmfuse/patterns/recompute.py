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
from tvmfuse.patterns.prologue import leading, readers


def _stretched(op: Any, x: Any, y: Any, z: Any) -> Any:
    raised = op.exp(op.add(x, y))
    return op.add(z, raised), op.negative(raised)


def _stretched_reference(x: Any, y: Any, z: Any) -> Any:
    return z + np.exp(x + y), -np.exp(x + y)


def _summed(op: Any, x: Any, y: Any) -> Any:
    product = op.multiply(op.negative(x), y)
    return op.sum(product, axis=[-1]), op.max(product, axis=[0])


def _summed_reference(x: Any, y: Any) -> Any:
    return (-x * y).sum(-1), (-x * y).max(0)


def _read_once(op: Any, x: Any, y: Any) -> Any:
    return op.sum(op.multiply(op.negative(x), y), axis=[-1])


def _behind_a_product(op: Any, x: Any) -> Any:
    y = op.matmul(x, x)
    return op.exp(y), op.sum(y)


def _into_a_product(op: Any, x: Any) -> Any:
    y = op.exp(x)
    return op.matmul(x, y), op.matmul(y, x)


def _cases() -> tuple[Case, ...]:
    return (
        Case(
            "a small tensor, stretched for two",
            {"x": Operand((5, 1)), "y": Operand((1, 7)), "z": Operand((3, 5, 7))},
            graph=_stretched,
            reference=_stretched_reference,
        ),
        Case(
            "the terms of two reductions",
            {"x": Operand((6, 40)), "y": Operand((6, 1))},
            graph=_summed,
            reference=_summed_reference,
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    square = {"x": Operand((4, 4))}
    return (
        Case("nobody else reads it", {**square, "y": Operand((4, 1))}, graph=_read_once),
        Case("a product leads to it", square, graph=_behind_a_product),
        Case("products read it", square, graph=_into_a_product),
    )


class Recompute(Generator):
    """An elementwise operator or a reduction, with what is cheap and leads to it."""

    name = "recompute"
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each reader of a value that others read, too, with all that leads to it."""
        for reader in readers(flow):
            members = leading(flow, reader, is_wanted=lambda read, inside: True)
            if flow.outputs(members) != (reader,):
                yield Match(members, operators.family(flow.value(reader)))

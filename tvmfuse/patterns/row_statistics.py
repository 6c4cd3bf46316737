"""Reductions of rows with the elementwise operators before, between and after them.

What stays within rows is one pass over them: the squares that a sum adds up, two
statistics of one tensor, the statistic taken off its row again. So a norm or a softmax
in a form that no named pattern knows is one kernel as well.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow

_MAX_OPERATORS = 24
_REDUCTIONS = frozenset(f"relax.{name}" for name in ("max", "mean", "min", "sum"))


def _squares(op: Any, x: Any) -> Any:
    return op.sqrt(op.sum(op.multiply(x, x), axis=[-1]))


def _squares_reference(x: Any) -> Any:
    return np.sqrt((x * x).sum(-1))


def _standardised(op: Any, x: Any, gain: Any) -> Any:
    centred = op.subtract(x, op.mean(x, axis=[1], keepdims=True))
    spread = op.mean(op.multiply(centred, centred), axis=[1], keepdims=True)
    return op.multiply(op.divide(centred, op.sqrt(op.add(spread, op.const(0.01)))), gain)


def _standardised_reference(x: Any, gain: Any) -> Any:
    centred = x - x.mean(1, keepdims=True)
    return centred / np.sqrt((centred**2).mean(1, keepdims=True) + 0.01) * gain


def _range(op: Any, x: Any) -> Any:
    x = op.abs(x)
    return op.subtract(op.max(x, axis=[1], keepdims=True), op.min(x, axis=[1], keepdims=True))


def _range_reference(x: Any) -> Any:
    return np.abs(x).max(1, keepdims=True) - np.abs(x).min(1, keepdims=True)


def _centred_and_mean(op: Any, x: Any, y: Any) -> Any:
    total = op.add(x, y)
    return total, op.subtract(total, op.mean(total, axis=[-1], keepdims=True))


def _centred_and_mean_reference(x: Any, y: Any) -> Any:
    return x + y, x + y - (x + y).mean(-1, keepdims=True)


def _other_axes(op: Any, x: Any) -> Any:
    rows = op.sum(x, axis=[2], keepdims=True)
    return op.multiply(op.exp(rows), op.sum(x, axis=[1], keepdims=True))


def _product_between(op: Any, x: Any, w: Any) -> Any:
    return op.sum(op.matmul(op.exp(x), w), axis=[-1])


def _without_axis(op: Any, x: Any) -> Any:
    x = op.abs(x)
    return op.subtract(op.max(x, axis=[1]), op.min(x, axis=[1]))


def _back_to_its_row(op: Any, x: Any, w: Any) -> Any:
    raised = op.exp(x)
    return op.multiply(raised, op.matmul(op.sum(raised, axis=[1], keepdims=True), w))


def _beside_a_product(op: Any, x: Any, w: Any) -> Any:
    raised = op.exp(x)
    return op.multiply(op.sum(raised, axis=[1], keepdims=True), op.matmul(raised, w))


def _cases() -> tuple[Case, ...]:
    x = Operand((6, 40))
    return (
        Case("a sum of squares and its root", {"x": x}, {}, _squares, _squares_reference),
        Case(
            "a norm written out, scaled",
            {"x": x, "gain": Operand((40,), is_constant=True)},
            {},
            _standardised,
            _standardised_reference,
        ),
        Case("two statistics of one row", {"x": x}, {}, _range, _range_reference),
        Case(
            "a sum that is wanted, and its distance from the mean",
            {"x": x, "y": x},
            {},
            _centred_and_mean,
            _centred_and_mean_reference,
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    return (
        Case("sums over different axes", {"x": Operand((3, 4, 5))}, graph=_other_axes),
        Case("both statistics drop their axis", {"x": Operand((4, 6))}, graph=_without_axis),
        Case(
            "a product leads from a statistic to its row",
            {"x": Operand((4, 6)), "w": Operand((1, 1), is_constant=True)},
            graph=_back_to_its_row,
        ),
        Case(
            "a product of the row scales its statistic",
            {"x": Operand((4, 6)), "w": Operand((6, 1), is_constant=True)},
            graph=_beside_a_product,
        ),
        Case(
            "a product lies between",
            {"x": Operand((4, 6)), "w": Operand((6, 6), is_constant=True)},
            graph=_product_between,
        ),
    )


@dataclass(frozen=True)
class _Rows:
    """The rows of one reduction: the shapes of what lies in them, and of their statistics."""

    full: tuple[int | str, ...]
    kept: tuple[int | str, ...]
    axes: tuple[int, ...]
    block: int

    @classmethod
    def of(cls, flow: Dataflow, position: int) -> _Rows | None:
        call = flow.value(position)
        if flow.operators[position] not in _REDUCTIONS or not flow.groupable[position]:
            return None
        full = operators.shape(call.args[0])
        if not full:
            return None
        given = call.attrs.axis
        axes = range(len(full)) if given is None else (int(axis) % len(full) for axis in given)
        at = tuple(sorted(axes))
        kept = tuple(1 if i in at else extent for i, extent in enumerate(full))
        return cls(full, kept, at, flow.block_of[position])

    def holds(self, flow: Dataflow, position: int) -> bool:
        """Whether an operator stays within these rows."""
        if flow.block_of[position] != self.block or not flow.groupable[position]:
            return False
        if flow.kinds[position] in ("elementwise", "broadcast"):
            return flow.shapes[position] in (self.full, self.kept)
        is_kept = flow.shapes[position] == self.kept
        return is_kept and _Rows.of(flow, position) == self


class RowStatistics(Generator):
    """Reductions over the same axes, connected by elementwise operators on the same rows."""

    name = "row_statistics"
    is_multi_output = True
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each reduction with what goes before it, then with all around it."""
        seen: set[frozenset[int]] = set()
        for position in range(len(flow.bindings)):
            rows = _Rows.of(flow, position)
            if rows is None:
                continue
            before = _grown(flow, rows, {position}, is_forward=False)
            around = _grown(flow, rows, before, is_forward=True)
            after = _followed(flow, before, position)
            for members in map(frozenset, (before, after, around)):
                if len(members) > 1 and members not in seen:
                    seen.add(members)
                    yield Match(tuple(sorted(members)), "reduction")


def _grown(flow: Dataflow, rows: _Rows, start: Set[int], *, is_forward: bool) -> set[int]:
    """Return ``start`` with the operators on the same rows that lead to it, or all around it.

    One that would close a cycle now may join once those between are there.
    """
    members = set(start)
    while len(members) < _MAX_OPERATORS:
        near = {read for member in members for read in flow.deps[member]}
        if is_forward:
            near |= {user for m in members for user in flow.users[m][:_MAX_OPERATORS]}
        fitting = [i for i in sorted(near - members) if rows.holds(flow, i)]
        added = next((i for i in fitting if flow.is_convex(members | {i})), None)
        if added is None:
            break
        members.add(added)
    return members


def _followed(flow: Dataflow, members: Set[int], reduction: int) -> set[int]:
    """Return a reduction's group with the chain after it, whose shape is that of the result."""
    found, last = set(members), reduction
    while len(found) < _MAX_OPERATORS and len(flow.users[last]) == 1:
        (reader,) = flow.users[last]
        fits = flow.kinds[reader] in ("elementwise", "broadcast") and flow.groupable[reader]
        same = flow.shapes[reader] == flow.shapes[reduction]
        is_near = flow.block_of[reader] == flow.block_of[last]
        if not (fits and same and is_near and flow.is_convex(found | {reader})):
            break
        found.add(reader)
        last = reader
    return found

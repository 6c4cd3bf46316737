"""Attention: scores, softmax and context as one kernel, without a score matrix.

Exporters write the same computation with the scale before or after the product,
masks added or chosen by ``where``, rows that are masked throughout guarded or not,
and transposes on any operand; :func:`read` takes them apart into what the kernel needs.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse._tvm import tvm
from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow

_TRANSPOSE = "relax.permute_dims"
_STEPS = frozenset({"relax.add", "relax.divide", "relax.multiply", "relax.subtract", "relax.where"})
_RANKS = (3, 4)


@dataclass(frozen=True)
class View:
    """An operand of a product: a value, and its axes in the order in which it is read."""

    value: Any
    axes: tuple[int, ...]


@dataclass(frozen=True)
class Attention:
    """What an attention is made of.

    Parameters
    ----------
    query, key, value : View
        Operands of the products; the key with its columns last, as the product reads it.
    steps : tuple of int
        Bindings that turn the product into scores, in order.
    zero_masked_rows : bool
        Whether a row that is masked throughout gives zeros instead of NaN.
    order : tuple of int
        Axes of the result in the order in which it is stored.
    members : tuple of int
        All bindings, ascending.
    """

    query: View
    key: View
    value: View
    steps: tuple[int, ...]
    zero_masked_rows: bool
    order: tuple[int, ...]
    members: tuple[int, ...]


def read(flow: Dataflow, softmax: int, *, are_numbers_known: bool = True) -> Attention | None:
    """Take the attention around a softmax apart, or return None where there is none.

    Parameters
    ----------
    flow : Dataflow
        A function, or a group of its own.
    softmax : int
        Position of the softmax.
    are_numbers_known : bool
        Whether constants stand in the function; in a group they are parameters, and were
        looked at when it was collected.
    """
    call = flow.value(softmax)
    rank = len(operators.shape(call) or ())
    if rank not in _RANKS or int(call.attrs.axis) % rank != rank - 1:
        return None
    found = _scores(flow, softmax)
    if found is None:
        return None
    scores, steps = found
    guard = _guard(flow, softmax, steps, are_numbers_known=are_numbers_known)
    weights = guard[-1] if guard else softmax
    context = _sole_user(flow, weights)
    if context is None or flow.operators[context] != "relax.matmul":
        return None
    left, right = flow.value(context).args
    if not left.same_as(flow.var(weights)) or flow.position.get(right) == weights:
        return None
    inside = [*steps, scores, softmax, *guard, context]
    views = []
    for operand, reader in (*((a, scores) for a in flow.value(scores).args), (right, context)):
        view, transposed = _view(flow, operand, reader, rank)
        views.append(view)
        inside += transposed
    after = _sole_user(flow, context)
    order = tuple(range(rank))
    if after is not None and flow.operators[after] == _TRANSPOSE:
        order = _axes(flow.value(after), rank)
        inside.append(after)
    if len(set(inside)) != len(inside) or any(
        len(operators.shape(v.value) or ()) != rank for v in views
    ):
        return None
    query, key, value = views
    return Attention(query, key, value, tuple(steps), bool(guard), order, tuple(sorted(inside)))


def _scores(flow: Dataflow, softmax: int) -> tuple[int, list[int]] | None:
    """Return the product under a softmax and the steps between, first to last."""
    steps: list[int] = []
    position, shape = softmax, operators.shape(flow.value(softmax))
    while True:
        producers = [p for p in flow.deps[position] if _is_step(flow, p, position, shape)]
        if len(producers) != 1:
            return None
        (position,) = producers
        if flow.operators[position] == "relax.matmul":
            return position, steps[::-1]
        steps.append(position)


def _is_step(flow: Dataflow, producer: int, reader: int, shape: Any) -> bool:
    """Whether ``producer`` belongs to the scores that ``reader`` alone reads."""
    return (
        flow.operators[producer] in _STEPS | {"relax.matmul"}
        and operators.shape(flow.value(producer)) == shape
        and _sole_user(flow, producer) == reader
    )


def _guard(
    flow: Dataflow, softmax: int, steps: Sequence[int], *, are_numbers_known: bool
) -> list[int]:
    """Return what makes rows that are masked throughout zero after a softmax ``y``.

    PyTorch writes ``where(isnan(y), 0, y)``, ONNX's Attention of opset 23
    ``where(max(mask, -1) == -inf, 0, y)`` with the mask that was added to the scores.
    """
    choice = next((u for u in flow.users[softmax] if flow.operators[u] == "relax.where"), None)
    if choice is None or softmax in flow.escaping:
        return []
    condition, zero, kept = flow.value(choice).args
    test = flow.position.get(condition)
    is_zero = not are_numbers_known or _is_number(zero, 0.0)
    is_choice = kept.same_as(flow.var(softmax)) and is_zero
    if test is None or not is_choice or _sole_user(flow, test) != choice:
        return []
    if flow.operators[test] == "relax.isnan":
        return [test, choice] if set(flow.users[softmax]) == {test, choice} else []
    highest = _highest_of_mask(flow, test, steps, are_numbers_known=are_numbers_known)
    is_read_once = _sole_user(flow, softmax) == choice
    return [highest, test, choice] if highest is not None and is_read_once else []


def _highest_of_mask(
    flow: Dataflow, test: int, steps: Sequence[int], *, are_numbers_known: bool
) -> int | None:
    """Return the maximum along the keys of an added mask that ``test`` holds against -inf."""
    if flow.operators[test] != "relax.equal":
        return None
    reduced, lowest = flow.value(test).args
    highest = flow.position.get(reduced)
    if highest is None or flow.operators[highest] != "relax.max":
        return None
    if are_numbers_known and not _is_number(lowest, -np.inf):
        return None
    call = flow.value(highest)
    (mask,), rank = call.args, call.ty.ndim
    axes = call.attrs.axis
    is_over_keys = axes is not None and [int(axis) % rank for axis in axes] == [rank - 1]
    added = [arg for step in steps for arg in _added(flow, step)]
    is_mask = any(arg.same_as(mask) for arg in added)
    is_own = is_over_keys and bool(call.attrs.keepdims) and _sole_user(flow, highest) == test
    return highest if is_mask and is_own else None


def _added(flow: Dataflow, step: int) -> list[Any]:
    return list(flow.value(step).args) if flow.operators[step] == "relax.add" else []


def _is_number(expr: Any, value: float) -> bool:
    """Tell whether ``expr`` is a constant of one element, and this number."""
    if not isinstance(expr, tvm.ir.GenericConst) or math.prod(expr.value.shape) != 1:
        return False
    return bool(expr.value.numpy().reshape(()) == value)


def _view(flow: Dataflow, operand: Any, reader: int, rank: int) -> tuple[View, list[int]]:
    position = flow.position.get(operand)
    is_own = (
        position is not None
        and flow.operators[position] == _TRANSPOSE
        and flow.groupable[position]
        and _sole_user(flow, position) == reader
    )
    if position is None or not is_own:
        return View(operand, tuple(range(rank))), []
    call = flow.value(position)
    return View(call.args[0], _axes(call, rank)), [position]


def _axes(call: Any, rank: int) -> tuple[int, ...]:
    axes = call.attrs.axes
    return tuple(reversed(range(rank))) if axes is None else tuple(int(a) % rank for a in axes)


def _sole_user(flow: Dataflow, position: int) -> int | None:
    users = set(flow.users[position])
    return users.pop() if len(users) == 1 and position not in flow.escaping else None


def _is_float32(flow: Dataflow, found: Attention) -> bool:
    return all(
        operators.dtype(flow.value(i)) in ("float32", "bool")
        and all(isinstance(d, int) for d in operators.shape(flow.value(i)) or ("?",))
        for i in found.members
    )


def _softmax(x: Any) -> Any:
    powers = np.exp(x - x.max(-1, keepdims=True))
    return powers / powers.sum(-1, keepdims=True)


def _masked(op: Any, q: Any, k: Any, v: Any, scale: Any, mask: Any) -> Any:
    left, right = op.permute_dims(q, axes=[0, 2, 1, 3]), op.permute_dims(k, axes=[0, 2, 3, 1])
    scores = op.add(op.multiply(op.matmul(left, right), scale), mask)
    context = op.matmul(op.nn.softmax(scores, axis=-1), op.permute_dims(v, axes=[0, 2, 1, 3]))
    return op.permute_dims(context, axes=[0, 2, 1, 3])


def _masked_reference(q: Any, k: Any, v: Any, scale: Any, mask: Any) -> Any:
    weights = _softmax(np.einsum("bihd,bjhd->bhij", q, k) * scale + mask)
    return np.einsum("bhij,bjhd->bihd", weights, v)


def _plain(op: Any, q: Any, k: Any, v: Any) -> Any:
    return op.matmul(op.nn.softmax(op.matmul(q, k), axis=-1), v)


def _plain_reference(q: Any, k: Any, v: Any) -> Any:
    return _softmax(q @ k) @ v


def _weights_read(op: Any, q: Any, k: Any, v: Any) -> Any:
    weights = op.nn.softmax(op.matmul(q, k), axis=-1)
    return op.matmul(weights, v), op.exp(weights)


def _over_queries(op: Any, q: Any, k: Any, v: Any) -> Any:
    return op.matmul(op.nn.softmax(op.matmul(q, k), axis=1), v)


_HEADS = {"q": Operand((2, 5, 3, 4)), "k": Operand((2, 7, 3, 4)), "v": Operand((2, 7, 3, 6))}
_ROWS = {"q": Operand((3, 5, 4)), "k": Operand((3, 4, 7)), "v": Operand((3, 7, 6))}


class FusedAttention(Generator):
    """Softmax of scores between two products."""

    name = "attention"
    cases = (
        Case(
            "heads, a scale and a mask",
            {
                **_HEADS,
                "scale": Operand((), is_constant=True),
                "mask": Operand((2, 1, 5, 7)),
            },
            graph=_masked,
            reference=_masked_reference,
        ),
        Case("rank 3, nothing transposed", _ROWS, graph=_plain, reference=_plain_reference),
    )
    near_misses = (
        Case("the weights are read elsewhere", _ROWS, graph=_weights_read),
        Case("the softmax runs over the queries", _ROWS, graph=_over_queries),
    )

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield the attention around every softmax."""
        for position, operator in enumerate(flow.operators):
            if operator == "relax.nn.softmax" and flow.groupable[position]:
                found = read(flow, position)
                if found is not None and _is_float32(flow, found):
                    yield Match(found.members, "attention")

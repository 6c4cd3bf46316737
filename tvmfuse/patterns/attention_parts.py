"""Take attention apart: what its operands are, how its scores are made, what guards it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse._tvm import tvm
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow

_TRANSPOSE = "relax.permute_dims"
_STEPS = frozenset({"relax.add", "relax.divide", "relax.multiply", "relax.subtract", "relax.where"})
_RANKS = (3, 4)
_TURNED = (0, 1, 2, 4, 3)  # rows and columns of what is parted into groups of heads
_SWAPPED = (0, 1, 3, 2)


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
    group : int
        Query heads that share one head of keys and values; the key and the value are then
        those before they are repeated.
    """

    query: View
    key: View
    value: View
    steps: tuple[int, ...]
    zero_masked_rows: bool
    order: tuple[int, ...]
    members: tuple[int, ...]
    group: int = 1


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
    right = flow.value(context).args[1]
    if flow.position.get(right) == weights:
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
    query, *repeated = views
    shared = _shared_heads(flow, repeated)
    (key, value), group, repeats = shared or (repeated, 1, [])
    members = tuple(sorted([*inside, *repeats]))
    return Attention(query, key, value, tuple(steps), bool(guard), order, members, group)


def _shared_heads(
    flow: Dataflow, views: Sequence[View]
) -> tuple[list[View], int, list[int]] | None:
    """Return keys and values before their heads were repeated, how often, and by what."""
    found = [_before_repeat(flow, view) for view in views]
    if not all(found) or len({item[1] for item in found if item}) != 1:
        return None
    sources, groups, repeats = zip(*(item for item in found if item), strict=True)
    return list(sources), groups[0], [position for part in repeats for position in part]


def _before_repeat(flow: Dataflow, view: View) -> tuple[View, int, list[int]] | None:
    """Return what is repeated along the heads, how often, and by which bindings."""
    last = flow.position.get(view.value)
    if last is None or view.axes[1] != 1:
        return None
    found = _sole_head(flow, view, last) or _parted_heads(flow, view, last)
    if found is None:
        return None
    repeats = found[2]
    is_own = not flow.escaping.intersection(repeats) and all(
        len(set(flow.users[i])) == 1 for i in repeats
    )
    return found if is_own else None


def _sole_head(flow: Dataflow, view: View, spread: int) -> tuple[View, int, list[int]] | None:
    """Take ``broadcast_to(x)`` apart that repeats the only head."""
    if flow.operators[spread] != "relax.broadcast_to":
        return None
    source, whole = flow.value(spread).args[0], flow.shapes[spread]
    if whole is None or len(whole) != max(_RANKS):
        return None
    batch, heads, *rest = whole
    is_repeat = isinstance(heads, int) and operators.shape(source) == (batch, 1, *rest)
    return (View(source, view.axes), int(heads), [spread]) if is_repeat else None


def _parted_heads(flow: Dataflow, view: View, merge: int) -> tuple[View, int, list[int]] | None:
    """Take ``reshape(broadcast_to(reshape(x)))`` apart that repeats each head.

    In canonical form, the transpose of keys stands before the outer reshape.
    """
    last = _source_of_view(flow, merge, "relax.reshape")
    turned = _source_of_view(flow, last, _TRANSPOSE)
    spread = last if turned is None else turned
    part = _source_of_view(flow, spread, "relax.broadcast_to")
    if last is None or spread is None or part is None:
        return None
    source = flow.value(part).args[0]
    whole, merged = flow.shapes[spread], flow.shapes[merge]
    if flow.operators[part] != "relax.reshape" or whole is None or len(whole) != max(_RANKS) + 1:
        return None
    if turned is not None and _axes(flow.value(last), len(whole)) != _TURNED:
        return None
    batch, heads, group, *rest = whole
    is_repeat = (
        isinstance(heads, int)
        and isinstance(group, int)
        and operators.shape(source) == (batch, heads, *rest)
        and flow.shapes[part] == (batch, heads, 1, *rest)
        and merged == (batch, heads * group, *(rest if turned is None else rest[::-1]))
    )
    axes = view.axes if turned is None else tuple(_SWAPPED[axis] for axis in view.axes)
    inside = sorted({part, spread, last, merge})
    return (View(source, axes), int(group), inside) if is_repeat else None


def _source_of_view(flow: Dataflow, position: int | None, operator: str) -> int | None:
    """Return what a call of ``operator`` reads, where it is computed here."""
    if position is None or flow.operators[position] != operator:
        return None
    return flow.position.get(flow.value(position).args[0])


def _scores(flow: Dataflow, softmax: int) -> tuple[int, list[int]] | None:
    """Return the product under a softmax and the steps between, first to last."""
    steps: list[int] = []
    position, shape = softmax, flow.shapes[softmax]
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
        and flow.shapes[producer] == shape
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

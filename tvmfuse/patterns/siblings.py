"""Siblings: operators that read one tensor and not each other, as one kernel.

Q, K and V of an attention, gate and up of a gated feed-forward, the branches of an
Inception or Fire module, several statistics of one tensor. Each brings the
elementwise operators after it along, and has a result of its own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from typing import Any

import numpy as np

from tvmfuse.patterns import references
from tvmfuse.patterns.activations import ACTIVATIONS
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.epilogue import ANCHORS, prefixes

# As in Inductor: siblings far apart keep their input alive too long, and one kernel of
# very many parts is slow to compile.
_MAX_DISTANCE = 64
_MAX_SIBLINGS = 8


def _projections(op: Any, x: Any, q: Any, k: Any, v: Any, b: Any) -> Any:
    return op.add(op.matmul(x, q), b), op.matmul(x, k), op.matmul(x, v)


def _projections_reference(x: Any, q: Any, k: Any, v: Any, b: Any) -> Any:
    return x @ q + b, x @ k, x @ v


def _gate_and_up(op: Any, x: Any, gate: Any, up: Any) -> Any:
    return op.nn.silu(op.matmul(x, gate)), op.matmul(x, up)


def _gate_and_up_reference(x: Any, gate: Any, up: Any) -> Any:
    return ACTIVATIONS["silu"].reference(x @ gate, None), x @ up


def _branches(op: Any, x: Any, one: Any, three: Any) -> Any:
    wide = op.nn.conv2d(x, three, padding=(1, 1, 1, 1))
    return op.nn.relu(op.nn.conv2d(x, one)), op.nn.relu(wide)


def _branches_reference(x: Any, one: Any, three: Any) -> Any:
    wide = references.conv2d(x, three, padding=(1, 1, 1, 1))
    return np.maximum(references.conv2d(x, one), 0), np.maximum(wide, 0)


def _statistics(op: Any, x: Any) -> Any:
    return op.mean(x, axis=[1], keepdims=True), op.exp(op.max(x, axis=[1], keepdims=True))


def _statistics_reference(x: Any) -> Any:
    return x.mean(1, keepdims=True), np.exp(x.max(1, keepdims=True))


def _one_after_another(op: Any, x: Any, q: Any) -> Any:
    y = op.matmul(x, q)
    return y, op.matmul(x, op.tanh(y))


def _one_adds_the_other(op: Any, x: Any, q: Any, k: Any) -> Any:
    return op.add(op.matmul(x, q), op.exp(op.matmul(x, k)))


def _one_multiplies_the_other(op: Any, x: Any, q: Any) -> Any:
    y = op.matmul(x, q)
    return y, op.matmul(x, y)


def _no_anchors(op: Any, x: Any) -> Any:
    return op.exp(x), op.tanh(x)


def _different_inputs(op: Any, x: Any, y: Any, q: Any) -> Any:
    return op.matmul(x, q), op.matmul(y, q)


def _weight_in_common(op: Any, x: Any, y: Any, z: Any) -> Any:
    return op.matmul(z, x), op.matmul(y, x)


def _cases() -> tuple[Case, ...]:
    x = Operand((2, 5, 16))
    weights = {
        "q": Operand((16, 24), is_constant=True, spread=0.25),
        "k": Operand((16, 8), is_constant=True, spread=0.25),
        "v": Operand((16, 8), is_constant=True, spread=0.25),
        "b": Operand((24,), is_constant=True),
    }
    gated = {
        "gate": Operand((16, 20), is_constant=True, spread=0.25),
        "up": Operand((16, 20), is_constant=True, spread=0.25),
    }
    filters = {
        "one": Operand((8, 6, 1, 1), is_constant=True, spread=0.4),
        "three": Operand((20, 6, 3, 3), is_constant=True, spread=0.14),
    }
    return (
        Case(
            "Q, K and V of unequal heads",
            {"x": x, **weights},
            graph=_projections,
            reference=_projections_reference,
        ),
        Case(
            "gate and up", {"x": x, **gated}, graph=_gate_and_up, reference=_gate_and_up_reference
        ),
        Case(
            "two convolutions of one image",
            {"x": Operand((1, 6, 7, 9)), **filters},
            graph=_branches,
            reference=_branches_reference,
        ),
        Case(
            "two statistics of one tensor",
            {"x": Operand((6, 40))},
            graph=_statistics,
            reference=_statistics_reference,
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    square = Operand((4, 4))
    operands = {"x": square, "y": square, "z": square, "q": square, "k": square}
    return (
        Case("one depends on the other", operands, graph=_one_after_another),
        Case("one is the weight of the other", operands, graph=_one_multiplies_the_other),
        Case("both are elementwise", operands, graph=_no_anchors),
        Case("the result of one is added to the other", operands, graph=_one_adds_the_other),
        Case("they read different tensors", operands, graph=_different_inputs),
        Case("only their right operand is the same", operands, graph=_weight_in_common),
    )


class Siblings(Generator):
    """Anchors of one input, each with its epilogue, as one kernel of several results."""

    name = "siblings"
    is_multi_output = True
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield, for each tensor, its readers of one kind and its readers of all kinds."""
        for readers in _readers(flow):
            by_kind: dict[str, list[int]] = {}
            for reader in readers:
                by_kind.setdefault(flow.kinds[reader], []).append(reader)
            sets = [tuple(part) for part in by_kind.values()]
            for siblings in dict.fromkeys([*sets, tuple(readers)]):
                if len(siblings) > 1:
                    yield from matches(flow, siblings)


def _readers(flow: Dataflow) -> Iterator[list[int]]:
    """Yield the anchors that read each tensor as their data, near one another."""
    of_tensor: dict[Any, list[int]] = {}
    for position, kind in enumerate(flow.kinds):
        if kind not in ANCHORS or not flow.groupable[position]:
            continue
        near = of_tensor.setdefault(flow.value(position).args[0], [])
        is_open = near and position - near[0] <= _MAX_DISTANCE and len(near) < _MAX_SIBLINGS
        if near and not (is_open and flow.block_of[near[0]] == flow.block_of[position]):
            yield list(near)
            near.clear()
        near.append(position)
    yield from of_tensor.values()


def matches(flow: Dataflow, siblings: Sequence[int]) -> Iterator[Match]:
    """Yield the siblings that do not depend on one another, with what only they feed."""
    tails = {anchor: list(prefixes(flow, anchor)) for anchor in siblings}
    last = max([*siblings, *(tail[-1][-1] for tail in tails.values() if tail)])
    reached = _reached(flow, siblings, last)
    free = [a for a in siblings if reached[a] == {a}]
    if len(free) < 2:
        return
    members: set[int] = set()
    for anchor in free:
        fitting = [t for t in tails[anchor] if all(reached[i] == {anchor} for i in t)]
        members.update(fitting[-1] if fitting else (anchor,))
    yield Match(tuple(sorted(members)), "joined")


def _reached(flow: Dataflow, siblings: Sequence[int], last: int) -> dict[int, set[int]]:
    """Return for each binding up to ``last`` the siblings that it is computed from."""
    reached: dict[int, set[int]] = {}
    wanted = set(siblings)
    for position in range(min(siblings), last + 1):
        sources = set().union(*(reached.get(read, ()) for read in flow.deps[position]))
        reached[position] = sources | ({position} & wanted)
    return reached

"""What an LSTM's step is tested on: as models write it, and what only looks like it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from tvmfuse.patterns.base import Case, Operand


def _sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def _combined(op: Any, parts: Sequence[Any], c: Any) -> Any:
    """Combine the input, output, forget and cell gates, not yet activated, with a cell."""
    i, o, f, g = parts
    kept = op.multiply(op.sigmoid(f), c)
    new = op.add(kept, op.multiply(op.sigmoid(i), op.tanh(g)))
    return op.multiply(op.sigmoid(o), op.tanh(new)), new


def _sum(op: Any, x: Any, h: Any, weight: Any) -> Any:
    return op.add(x, op.matmul(h, weight))


def _slices(op: Any, total: Any, ranges: Iterable[tuple[int, int]], axis: int = 1) -> list[Any]:
    return [op.strided_slice(total, [axis], [begin], [end], [1]) for begin, end in ranges]


def _graph(op: Any, x: Any, h: Any, c: Any, weight: Any, bias: Any, *, order: Sequence[int]) -> Any:
    size = int(h.ty.shape.values[1])
    total = op.add(x, op.add(op.matmul(h, weight), bias))
    return _combined(op, _slices(op, total, [(k * size, (k + 1) * size) for k in order]), c)


def _without_steps(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
    total = _sum(op, x, h, weight)
    parts = [op.strided_slice(total, [1], [5 * k], [5 * k + 5]) for k in range(4)]
    return _combined(op, parts, c)


def _split_graph(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
    parts = op.split(op.add(op.matmul(h, weight), x), 4, axis=-1)
    i, f, g, o = (op.tanh(parts[k]) if k == 2 else op.sigmoid(parts[k]) for k in range(4))
    new = op.add(op.multiply(i, g), op.multiply(c, f))
    return op.multiply(op.tanh(new), o), new


def _reference(
    x: Any, h: Any, c: Any, weight: Any, bias: Any, *, order: Sequence[int]
) -> tuple[Any, Any]:
    parts = np.split(x + h @ weight + bias, 4, axis=1)
    i, o, f, g = (parts[k] for k in order)
    new = _sigmoid(f) * c + _sigmoid(i) * np.tanh(g)
    return _sigmoid(o) * np.tanh(new), new


def _split_reference(x: Any, h: Any, c: Any, weight: Any) -> tuple[Any, Any]:
    return _reference(x, h, c, weight, 0.0, order=(0, 3, 1, 2))


def _summed_over_rows(op: Any, x: Any, h: Any, c: Any, weight: Any, bias: Any) -> Any:
    hidden, new = _graph(op, x, h, c, weight, bias, order=(0, 1, 2, 3))
    return hidden, op.sum(new, axis=[1])


def _one_gate_twice(op: Any, x: Any, h: Any, c: Any, weight: Any, bias: Any) -> Any:
    return _graph(op, x, h, c, weight, bias, order=(0, 1, 0, 3))


def _sum_is_read(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
    total = op.matmul(h, weight)
    parts = op.split(total, 4, axis=-1)
    new = op.add(
        op.multiply(op.sigmoid(parts[0]), c),
        op.multiply(op.sigmoid(parts[1]), op.nn.relu(parts[2])),
    )
    return op.multiply(op.sigmoid(parts[3]), op.tanh(new)), new


_OPERANDS = {
    "x": Operand((3, 20)),
    "h": Operand((3, 5)),
    "c": Operand((3, 5)),
    "weight": Operand((5, 20), is_constant=True, spread=0.4),
    "bias": Operand((20,), is_constant=True),
}


def _cut(name: str, ranges: Sequence[tuple[int, int]], **changed: Operand) -> Case:
    """Return a near miss whose gates are other columns of the sum."""

    def graph(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
        return _combined(op, _slices(op, _sum(op, x, h, weight), ranges), c)

    return Case(name, {**_OPERANDS, **changed}, graph=graph)


def _of(name: str, total: Callable[..., Any], **changed: Operand) -> Case:
    """Return a near miss whose gates are quarters of another sum."""

    def graph(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
        *_, size = (int(extent) for extent in c.ty.shape)
        ranges = [(k * size, (k + 1) * size) for k in range(4)]
        axis = len(c.ty.shape) - 1
        return _combined(op, _slices(op, total(op, x, h, weight), ranges, axis), c)

    return Case(name, {**_OPERANDS, **changed}, graph=graph)


def _every_second(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
    total = _sum(op, x, h, weight)
    parts = [op.strided_slice(total, [1], [5 * k], [5 * k + 5], [2]) for k in range(4)]
    return _combined(op, parts, c)


def _of_two_axes(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
    total = _sum(op, x, h, weight)
    parts = [op.strided_slice(total, [1, 0], [5 * k, 0], [5 * k + 5, 2]) for k in range(4)]
    return _combined(op, parts, c)


def _of_rows(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
    ranges = [(5 * k, 5 * k + 5) for k in range(4)]
    return _combined(op, _slices(op, _sum(op, x, h, weight), ranges, axis=0), c)


def _split_rows(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
    parts = op.split(_sum(op, x, h, weight), 4, axis=0)
    return _combined(op, [parts[k] for k in range(4)], c)


def _split_in_five(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
    parts = op.split(_sum(op, x, h, weight), 5, axis=-1)
    return _combined(op, [parts[k] for k in range(4)], c)


def _of_two_sums(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
    first, second = op.matmul(h, weight), _sum(op, x, h, weight)
    parts = [*_slices(op, first, [(0, 5), (5, 10), (10, 15)]), *_slices(op, second, [(15, 20)])]
    return _combined(op, parts, c)


def _cell_is_activated(
    op: Any, x: Any, h: Any, c: Any, weight: Any, *, act: str = "sigmoid"
) -> Any:
    i, o, f, g = _slices(op, _sum(op, x, h, weight), [(5 * k, 5 * k + 5) for k in range(4)])
    kept = op.multiply(getattr(op, act)(c), op.sigmoid(f))
    new = op.add(kept, op.multiply(op.sigmoid(i), op.tanh(g)))
    return op.multiply(op.sigmoid(o), op.tanh(new)), new


def _cell_of_a_part(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
    (part,) = _slices(op, x, [(0, 5)])
    return _cell_is_activated(op, x, h, part, weight, act="tanh")


def _added_to_a_part(op: Any, x: Any, h: Any, c: Any, weight: Any) -> Any:
    parts = op.split(_sum(op, x, h, weight), 4, axis=-1)
    new = op.add(op.multiply(op.sigmoid(parts[0]), op.tanh(parts[1])), parts[2])
    return op.multiply(op.sigmoid(parts[3]), op.tanh(new)), new


CASES = (
    Case(
        "gates as ONNX orders them",
        _OPERANDS,
        {"order": (0, 1, 2, 3)},
        graph=_graph,
        reference=_reference,
    ),
    Case(
        "gates as PyTorch orders them",
        _OPERANDS,
        {"order": (0, 3, 1, 2)},
        graph=_graph,
        reference=_reference,
    ),
    Case("parts of a split", _OPERANDS, graph=_split_graph, reference=_split_reference),
    Case(
        "slices without a step",
        _OPERANDS,
        graph=_without_steps,
        reference=lambda x, h, c, weight: _reference(x, h, c, weight, 0.0, order=(0, 1, 2, 3)),
    ),
)

NEAR_MISSES = (
    Case("one part is two gates", _OPERANDS, graph=_one_gate_twice),
    Case("the candidate has another activation", _OPERANDS, graph=_sum_is_read),
    Case("more is computed from the cell", _OPERANDS, graph=_summed_over_rows),
    _cut(
        "the gates are narrower than a quarter",
        [(5 * k, 5 * k + 4) for k in range(4)],
        c=Operand((3, 4)),
    ),
    _cut("the gates overlap", [(1, 6), (5, 10), (10, 15), (15, 20)]),
    _cut(
        "the columns are fewer than the gates",
        [(0, 1), (1, 2), (0, 1), (1, 2)],
        x=Operand((3, 2)),
        weight=Operand((5, 2), is_constant=True),
        c=Operand((3, 1)),
    ),
    Case(
        "every second column is a gate's", {**_OPERANDS, "c": Operand((3, 3))}, graph=_every_second
    ),
    Case("rows are cut, too", {**_OPERANDS, "c": Operand((2, 5))}, graph=_of_two_axes),
    Case(
        "the gates are rows",
        {**_OPERANDS, "x": Operand((20, 20)), "h": Operand((20, 5)), "c": Operand((5, 20))},
        graph=_of_rows,
    ),
    Case(
        "rows are split",
        {**_OPERANDS, "x": Operand((12, 20)), "h": Operand((12, 5)), "c": Operand((3, 20))},
        graph=_split_rows,
    ),
    Case("a fifth part is left", {**_OPERANDS, "c": Operand((3, 4))}, graph=_split_in_five),
    Case("the gates are of two sums", _OPERANDS, graph=_of_two_sums),
    Case("the cell before is activated", _OPERANDS, graph=_cell_is_activated),
    Case("the cell before is a part, activated", _OPERANDS, graph=_cell_of_a_part),
    Case("a part is added without a gate", _OPERANDS, graph=_added_to_a_part),
    _of("nothing is multiplied", lambda op, x, h, weight: op.add(x, x)),
    _of("the sum is squashed first", lambda op, x, h, weight: op.tanh(x)),
    _of("a term is computed", lambda op, x, h, weight: _sum(op, op.exp(x), h, weight)),
    _of(
        "the state is stretched",
        lambda op, x, h, weight: op.add(op.multiply(h, weight), x),
        x=Operand((3, 4)),
        h=Operand((3, 1)),
        c=Operand((3, 1)),
        weight=Operand((1, 4), is_constant=True),
    ),
    _of(
        "there are several sequences",
        _sum,
        x=Operand((2, 5, 20)),
        h=Operand((2, 5, 5)),
        c=Operand((2, 5, 5)),
    ),
    _of(
        "the state is projected", _sum, h=Operand((3, 7)), weight=Operand((7, 20), is_constant=True)
    ),
    Case(
        "in float64",
        {name: replace(operand, dtype="float64") for name, operand in _OPERANDS.items()},
        graph=_split_graph,
    ),
)

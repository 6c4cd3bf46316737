"""What rotary embeddings are tested on: as models write them, and what only looks like them."""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfuse.patterns.base import Case, Operand


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


def _complex(op: Any, x: Any, c: Any, s: Any, *, axis: int = -1) -> Any:
    half = _width(x) // 2
    real, imaginary = _sliced(op, x, 0, half), _sliced(op, x, half, 2 * half)
    first = op.subtract(op.multiply(real, c), op.multiply(imaginary, s))
    second = op.add(op.multiply(real, s), op.multiply(imaginary, c))
    return op.concat([first, second], axis=axis)


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


def _joined_as_rows(op: Any, x: Any, c: Any, s: Any) -> Any:
    return _complex(op, x, c, s, axis=2)


def _part_as_rows(op: Any, x: Any, y: Any, c: Any, s: Any) -> Any:
    return op.concat([_complex(op, x, c, s), y], axis=2)


def _rows_inside(op: Any, x: Any, y: Any, c: Any, s: Any) -> Any:
    return op.concat([_complex(op, x, c, s, axis=2), y], axis=-1)


def _rows_as_columns(op: Any, x: Any, cos: Any) -> Any:
    halves = [op.strided_slice(x, axes=[2], begin=[b], end=[b + 3]) for b in (0, 3)]
    return op.add(op.multiply(op.concat(halves, axis=-1), cos), cos)


def _one_half(op: Any, x: Any, y: Any, cos: Any, sin: Any) -> Any:
    half = _width(x) // 2
    rotated = op.concat([op.negative(_sliced(op, x, half, 2 * half)), y], axis=-1)
    return op.add(op.multiply(x, cos), op.multiply(rotated, sin))


def _half_too(op: Any, x: Any, cos: Any, sin: Any) -> Any:
    half = _width(x) // 2
    low = _sliced(op, x, 0, half)
    rotated = op.concat([op.negative(_sliced(op, x, half, 2 * half)), low], axis=-1)
    return op.add(op.multiply(x, cos), op.multiply(rotated, sin)), low


def _half_read(op: Any, x: Any, cos: Any, sin: Any) -> Any:
    result, low = _half_too(op, x, cos, sin)
    return result, op.exp(low)


def _part_read(op: Any, x: Any, cos: Any, sin: Any) -> Any:
    part = _sliced(op, x, 0, 8)
    return _by_halves(op, part, cos, sin), op.exp(part)


def _angles_of_slices(op: Any, x: Any, cos: Any, sin: Any) -> Any:
    return _by_halves(op, x, op.exp(_sliced(op, cos, 0, 8)), sin)


def _transposed_too(op: Any, x: Any, cos: Any, sin: Any) -> Any:
    turned = op.permute_dims(x, axes=[0, 2, 1, 3])
    return _by_halves(op, turned, cos, sin), turned


def _transposed_read(op: Any, x: Any, cos: Any, sin: Any) -> Any:
    result, turned = _transposed_too(op, x, cos, sin)
    return result, op.exp(turned)


def _different_angles(op: Any, x: Any, k: Any, cos: Any, sin: Any, c: Any, s: Any) -> Any:
    return _by_halves(op, x, cos, sin), _by_halves(op, k, c, s)


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

CASES = (
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
NEAR_MISSES = (
    Case("the rotated tensor is read elsewhere", _HEADS, graph=_rotated_too),
    Case("parts of two tensors are joined", {**_HEADS, "y": _HEADS["x"]}, graph=_of_two_tensors),
    Case("the halves are rows", _HEADS, graph=_along_rows),
    Case("the halves are joined as rows", _ANGLES, graph=_joined_as_rows),
    Case(
        "the parts are joined as rows", {**_ANGLES, "y": Operand((2, 3, 4, 8))}, graph=_part_as_rows
    ),
    Case(
        "turned halves stand above each other",
        {**_ANGLES, "y": Operand((2, 3, 10, 4))},
        graph=_rows_inside,
    ),
    Case(
        "halves of the rows are joined as columns",
        {**_HEADS, "cos": Operand((16,))},
        graph=_rows_as_columns,
    ),
    Case("one half comes from elsewhere", {**_HEADS, "y": Operand((2, 3, 6, 4))}, graph=_one_half),
    Case("a half is read elsewhere", _HEADS, graph=_half_read),
    Case("a half is a result, too", _HEADS, graph=_half_too),
    Case(
        "a part of the tensor is read elsewhere",
        {**_HEADS, "x": Operand((2, 3, 6, 10))},
        graph=_part_read,
    ),
    Case(
        "what is rotated is raised first",
        _HEADS,
        graph=lambda op, x, cos, sin: _by_halves(op, op.exp(x), cos, sin),
    ),
    Case(
        "what is rotated is scaled first",
        _HEADS,
        graph=lambda op, x, cos, sin: _by_halves(op, op.multiply(x, x), cos, sin),
    ),
    Case(
        "the angles are raised",
        _HEADS,
        graph=lambda op, x, cos, sin: _by_halves(op, x, op.exp(cos), sin),
    ),
    Case(
        "the angles are cut and raised",
        {**_HEADS, "cos": Operand((1, 1, 6, 9))},
        graph=_angles_of_slices,
    ),
    Case(
        "the transposed tensor is a result, too",
        {**_HEADS, "x": Operand((2, 6, 3, 8))},
        graph=_transposed_too,
    ),
    Case(
        "the transposed tensor is read elsewhere",
        {**_HEADS, "x": Operand((2, 6, 3, 8))},
        graph=_transposed_read,
    ),
    Case(
        "query and key turn by different angles",
        {**_HEADS, "k": _HEADS["x"], "c": _HEADS["cos"], "s": _HEADS["sin"]},
        graph=_different_angles,
    ),
)

"""Attention: scores, softmax and context as one kernel, without a score matrix.

Exporters write the same computation with the scale before or after the product,
masks added or chosen by ``where``, rows that are masked throughout guarded or not,
heads repeated for their groups, and transposes on any operand;
:func:`attention_parts.read` takes them apart into what the kernel needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import numpy as np

from tvmfuse.patterns import operators
from tvmfuse.patterns.attention_parts import Attention, read
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow


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


def _grouped(op: Any, q: Any, k: Any, v: Any) -> Any:
    def repeated(x: Any) -> Any:
        batch, heads, rows, width = (int(d) for d in x.ty.shape)
        wide = op.broadcast_to(
            op.reshape(x, (batch, heads, 1, rows, width)), (batch, heads, 2, rows, width)
        )
        return op.reshape(wide, (batch, 2 * heads, rows, width))

    scores = op.matmul(q, op.permute_dims(repeated(k), axes=[0, 1, 3, 2]))
    return op.matmul(op.nn.softmax(scores, axis=-1), repeated(v))


def _interleaved(op: Any, q: Any, k: Any, v: Any) -> Any:
    def repeated(x: Any) -> Any:
        batch, heads, rows, width = (int(d) for d in x.ty.shape)
        wide = op.broadcast_to(
            op.reshape(x, (batch, 1, heads, rows, width)), (batch, 2, heads, rows, width)
        )
        return op.reshape(wide, (batch, 2 * heads, rows, width))

    scores = op.matmul(q, op.permute_dims(repeated(k), axes=[0, 1, 3, 2]))
    return op.matmul(op.nn.softmax(scores, axis=-1), repeated(v))


def _grouped_reference(q: Any, k: Any, v: Any) -> Any:
    k, v = np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1)
    return _softmax(q @ k.transpose(0, 1, 3, 2)) @ v


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
        Case(
            "two query heads to a key head",
            {"q": Operand((2, 6, 5, 4)), "k": Operand((2, 3, 7, 4)), "v": Operand((2, 3, 7, 6))},
            graph=_grouped,
            reference=_grouped_reference,
        ),
        Case("rank 3, nothing transposed", _ROWS, graph=_plain, reference=_plain_reference),
    )
    near_misses = (
        Case("the weights are read elsewhere", _ROWS, graph=_weights_read),
        Case("the softmax runs over the queries", _ROWS, graph=_over_queries),
        Case(
            "heads are repeated in turns",
            {"q": Operand((2, 4, 5, 4)), "k": Operand((2, 2, 7, 4)), "v": Operand((2, 2, 7, 6))},
            graph=_interleaved,
        ),
    )

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield the attention around every softmax."""
        for position, operator in enumerate(flow.operators):
            if operator == "relax.nn.softmax" and flow.groupable[position]:
                found = read(flow, position)
                if found is not None and _is_float32(flow, found):
                    yield Match(found.members, "attention")

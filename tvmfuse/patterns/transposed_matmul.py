"""Matrix product whose operands or result are transposed: no copy of any of them.

Attention is written with four transposes around two products. A product reads its
operands once into panels or row by row, in any order of axes, and writes its
result tile by tile, so each transpose is only another index.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import numpy as np

from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.epilogue import prefixes

_TRANSPOSE = "relax.permute_dims"


def _scores(op: Any, q: Any, k: Any, scale: Any) -> Any:
    left, right = op.permute_dims(q, axes=[0, 2, 1, 3]), op.permute_dims(k, axes=[0, 2, 3, 1])
    return op.multiply(op.matmul(left, right), scale)


def _scores_reference(q: Any, k: Any, scale: Any) -> Any:
    return np.einsum("bshd,bthd->bhst", q, k) * scale


def _context(op: Any, p: Any, v: Any) -> Any:
    return op.permute_dims(op.matmul(p, op.permute_dims(v, axes=[0, 2, 1, 3])), axes=[0, 2, 1, 3])


def _context_reference(p: Any, v: Any) -> Any:
    return np.einsum("bhst,bthd->bshd", p, v)


def _shared_transpose(op: Any, x: Any, y: Any) -> Any:
    turned = op.permute_dims(y, axes=[1, 0])
    return op.matmul(x, turned), op.exp(turned)


def _product_too(op: Any, x: Any, y: Any) -> Any:
    product = op.matmul(x, y)
    return op.permute_dims(product, axes=[1, 0]), product


def _convolution(op: Any, x: Any, y: Any) -> Any:
    return op.nn.conv2d(op.permute_dims(x, axes=[0, 3, 1, 2]), y)


def _of_powers(op: Any, x: Any, y: Any) -> Any:
    return op.matmul(op.exp(x), y)


def _then_cut(op: Any, x: Any, y: Any) -> Any:
    return op.strided_slice(op.matmul(x, y), [1], [0], [2])


class TransposedMatmul(Generator):
    """A product, the transposes that only it reads, its epilogue, and one transpose after."""

    name = "transposed_matmul"
    cases = (
        Case(
            "scores of attention",
            {
                "q": Operand((2, 5, 3, 4)),
                "k": Operand((2, 6, 3, 4)),
                "scale": Operand((), is_constant=True),
            },
            graph=_scores,
            reference=_scores_reference,
        ),
        Case(
            "context of attention",
            {"p": Operand((2, 3, 5, 6)), "v": Operand((2, 6, 3, 4))},
            graph=_context,
            reference=_context_reference,
        ),
    )
    near_misses = (
        Case(
            "the transposed operand has another reader",
            {"x": Operand((4, 3)), "y": Operand((5, 3))},
            graph=_shared_transpose,
        ),
        Case(
            "a convolution reads the transpose",
            {"x": Operand((1, 5, 5, 3)), "y": Operand((4, 3, 1, 1))},
            graph=_convolution,
        ),
        Case(
            "an operand is raised instead",
            {"x": Operand((4, 3)), "y": Operand((3, 5))},
            graph=_of_powers,
        ),
        Case(
            "the product is cut instead",
            {"x": Operand((4, 3)), "y": Operand((3, 5))},
            graph=_then_cut,
        ),
        Case(
            "the product is a result, too",
            {"x": Operand((4, 3)), "y": Operand((3, 5))},
            graph=_product_too,
        ),
    )

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield every product that has such a transpose, with each prefix of its epilogue."""
        for anchor in range(len(flow.bindings)):
            if flow.kinds[anchor] != "matmul" or not flow.groupable[anchor]:
                continue
            before = frozenset(
                p
                for p in flow.deps[anchor]
                if flow.operators[p] == _TRANSPOSE and _is_private(flow, p, anchor)
            )
            for members in ((anchor,), *prefixes(flow, anchor)):
                group = before.union(members)
                (last,) = flow.outputs(members)
                after = [
                    user
                    for user in flow.users[last]
                    if flow.operators[user] == _TRANSPOSE and _is_private(flow, last, user)
                ]
                if before:
                    yield Match(tuple(sorted(group)), "matmul")
                if after:
                    yield Match(tuple(sorted(group.union(after))), "matmul")


def _is_private(flow: Dataflow, producer: int, consumer: int) -> bool:
    """Whether ``producer`` can be computed within ``consumer``, its only reader."""
    return (
        flow.groupable[producer]
        and flow.groupable[consumer]
        and set(flow.users[producer]) == {consumer}
        and producer not in flow.escaping
        and flow.block_of[producer] == flow.block_of[consumer]
    )

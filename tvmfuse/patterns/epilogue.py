"""Any anchor with the elementwise operators that follow it.

The safety net under the named patterns: nothing that one kernel could do is
lost because nobody wrote a pattern for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import numpy as np
from scipy.special import expit

from tvmfuse.patterns import operators, references
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow

ANCHORS = ("conv", "matmul", "pooling", "reduction")
"""Kinds of operators that a kernel is built around."""

_MAX_OPERATORS = 16
# A value that everybody reads (a mask, say) must not cost a look at each of them.
_MAX_REFUSED = 32


def _conv1d_gate(op: Any, x: Any, weight: Any, gate: Any) -> Any:
    y = op.nn.conv1d(x, weight, padding=1)
    return op.multiply(gate, op.multiply(op.tanh(y), op.sigmoid(y)))


def _conv1d_gate_reference(x: Any, weight: Any, gate: Any) -> Any:
    image = references.conv2d(x[:, :, None], weight[:, :, None], padding=(0, 1, 0, 1))[:, :, 0]
    return gate * np.tanh(image) * expit(image)


def _pool_then_rescale(op: Any, x: Any, scale: Any) -> Any:
    return op.add(op.multiply(op.nn.max_pool2d(x, pool_size=(2, 2), strides=(2, 2)), scale), scale)


def _pool_then_rescale_reference(x: Any, scale: Any) -> Any:
    n, c, h, w = x.shape
    pooled = x.reshape(n, c, h // 2, 2, w // 2, 2).max(axis=(3, 5))
    return pooled * scale + scale


def _padded_bytes(op: Any, x: Any, weight: Any, scale: Any) -> Any:
    padded = op.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1), pad_value=3.0)
    sums = op.nn.conv2d(padded, weight, groups=4, out_dtype="int32")
    return op.multiply(op.astype(sums, "float32"), scale)


def _convolved(op: Any, image: Any, weight: Any, groups: int) -> Any:
    out_dtype = "float32" if str(weight.ty.dtype) == "float32" else "int32"
    sums = op.nn.conv2d(image, weight, groups=groups, out_dtype=out_dtype)
    return op.astype(sums, "float64")


def _padded(op: Any, x: Any, weight: Any) -> Any:
    groups = 4 // int(weight.ty.shape[1])
    return _convolved(op, op.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1)), weight, groups)


def _padded_too(op: Any, x: Any, weight: Any) -> Any:
    image = op.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1))
    return _convolved(op, image, weight, 4), image


def _padded_read(op: Any, x: Any, weight: Any) -> Any:
    result, image = _padded_too(op, x, weight)
    return result, op.abs(image)


def _padded_bytes_reference(x: Any, weight: Any, scale: Any) -> Any:
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=3)
    return references.conv2d(padded, weight, groups=4) * scale


def _mean_then_root(op: Any, x: Any) -> Any:
    return op.sqrt(op.abs(op.mean(x, axis=[1], keepdims=True)))


def _mean_then_root_reference(x: Any) -> Any:
    return np.sqrt(np.abs(x.mean(1, keepdims=True)))


def _stretched_after(op: Any, x: Any, weight: Any) -> Any:
    return op.add(x, op.matmul(x, weight))


def _two_products(op: Any, x: Any, weight: Any) -> Any:
    y = op.matmul(x, weight)
    return op.add(y, op.matmul(y, weight))


def _cases() -> tuple[Case, ...]:
    row = {"x": Operand((2, 4, 8, 6))}
    return (
        Case(
            "a gated 1-d convolution whose result is read twice",
            {"x": Operand((2, 3, 10)), "weight": Operand((4, 3, 3)), "gate": Operand((4, 1))},
            graph=_conv1d_gate,
            reference=_conv1d_gate_reference,
        ),
        Case(
            "pooling, scaled per channel",
            {**row, "scale": Operand((4, 1, 1), is_constant=True)},
            graph=_pool_then_rescale,
            reference=_pool_then_rescale_reference,
        ),
        Case(
            "a convolution of bytes, around which zero is stored as 3",
            {
                "x": Operand((2, 4, 5, 6), dtype="int8"),
                "weight": Operand((4, 1, 3, 3), is_constant=True, dtype="int8"),
                "scale": Operand((4, 1, 1), is_constant=True, dtype="float32"),
            },
            graph=_padded_bytes,
            reference=_padded_bytes_reference,
        ),
        Case(
            "a mean and its root", row, graph=_mean_then_root, reference=_mean_then_root_reference
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    taps = {
        "x": Operand((2, 4, 5, 6), dtype="int8"),
        "weight": Operand((4, 1, 3, 3), is_constant=True, dtype="int8"),
    }
    return (
        Case(
            "the sum is larger than the product",
            {"x": Operand((5, 3)), "weight": Operand((3, 1))},
            graph=_stretched_after,
        ),
        Case(
            "the other operand depends on the anchor",
            {"x": Operand((3, 3)), "weight": Operand((3, 3))},
            graph=_two_products,
        ),
        Case("the padded bytes are a result, too", taps, graph=_padded_too),
        Case("the padded bytes are read elsewhere", taps, graph=_padded_read),
        Case(
            "bytes are negated, not padded",
            taps,
            graph=lambda op, x, weight: _convolved(op, op.negative(x), weight, 4),
        ),
        Case(
            "all channels of the padded bytes are one group",
            {**taps, "weight": Operand((4, 4, 3, 3), is_constant=True, dtype="int8")},
            graph=_padded,
        ),
        Case(
            "what is padded are no bytes",
            {"x": Operand((2, 4, 5, 6)), "weight": Operand((4, 1, 3, 3), is_constant=True)},
            graph=_padded,
        ),
    )


class Epilogue(Generator):
    """An anchor and each prefix of the elementwise operators after it.

    An operator belongs to the epilogue if it works on the anchor's shape. Its
    other operands may be any tensors that do not depend on the anchor. A convolution
    of bytes in groups may also take in the padding before it: its kernel copies the image anyway.
    """

    name = "epilogue"
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield every prefix of each anchor's epilogue, the shortest first."""
        for anchor in range(len(flow.bindings)):
            if flow.kinds[anchor] in ANCHORS and flow.groupable[anchor]:
                for others in ((), *_paddings(flow, anchor)):
                    for members in prefixes(flow, anchor, *others):
                        yield Match(members, operators.family(flow.value(anchor)))


def _paddings(flow: Dataflow, anchor: int) -> list[tuple[int]]:
    """Return what pads the image of a convolution of bytes in groups.

    Others may take a few plain channels as they lie, where there is no padded form of them.
    """
    call = flow.value(anchor)
    if flow.kinds[anchor] != "conv" or int(call.attrs.groups) == 1:
        return []
    if operators.dtype(call.args[0]) not in ("int8", "uint8"):
        return []
    return [
        (at,)
        for at in flow.deps[anchor]
        if flow.operators[at] == "relax.nn.pad"
        and flow.groupable[at]
        and flow.block_of[at] == flow.block_of[anchor]
    ]


def prefixes(flow: Dataflow, anchor: int, *others: int) -> Iterator[tuple[int, ...]]:
    """Yield an anchor, or several of one shape, with ever more of the epilogue.

    Only sets with one result are yielded; a value inside may have several readers
    as long as all of them are inside too, as in ``x * sigmoid(x)``. What leaves such a set
    is its last value, which leads to none of the others: it is convex.
    """
    members = {anchor, *others}
    refused: set[int] = set()
    while len(members) < _MAX_OPERATORS:
        added = _next(flow, anchor, members, refused)
        if added is None:
            return
        members.add(added)
        if len(flow.outputs(members)) == 1:
            yield tuple(sorted(members))


def _next(flow: Dataflow, anchor: int, members: set[int], refused: set[int]) -> int | None:
    """Return the first reader of ``members`` that can join them."""
    if len(refused) > _MAX_REFUSED:
        return None
    readers = {user for member in members for user in flow.users[member]} - members - refused
    for reader in sorted(readers)[:_MAX_REFUSED]:
        if _fits(flow, anchor, reader):
            return reader
        refused.add(reader)
    return None


def _fits(flow: Dataflow, anchor: int, reader: int) -> bool:
    return (
        flow.kinds[reader] in ("elementwise", "broadcast")
        and flow.groupable[reader]
        and flow.shapes[reader] == flow.shapes[anchor]
        and flow.block_of[reader] == flow.block_of[anchor]
    )

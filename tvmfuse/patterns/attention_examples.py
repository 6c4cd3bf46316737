"""What attention is tested on: forms that exporters write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.patterns.base import Case, Operand


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


def repeated(op: Any, x: Any, times: int = 2) -> Any:
    """Repeat each head, the second axis, as PyTorch does."""
    batch, heads, *rest = (int(d) for d in x.ty.shape)
    wide = op.broadcast_to(op.reshape(x, (batch, heads, 1, *rest)), (batch, heads, times, *rest))
    return op.reshape(wide, (batch, times * heads, *rest))


def of_repeated(op: Any, q: Any, k: Any, v: Any) -> Any:
    """Attention to keys that lie as values do."""
    axes = [*range(len(k.ty.shape) - 2), -1, -2]
    return op.matmul(op.nn.softmax(op.matmul(q, op.permute_dims(k, axes)), axis=-1), v)


def _grouped(op: Any, q: Any, k: Any, v: Any) -> Any:
    return of_repeated(op, q, repeated(op, k), repeated(op, v))


def _grouped_turned(op: Any, q: Any, k: Any, v: Any) -> Any:
    return of_turned(op, q, k, v, [0, 1, 2, 4, 3])


def of_turned(op: Any, q: Any, k: Any, v: Any, axes: list[int]) -> Any:
    """Attention to keys that are repeated, then turned, then merged, as in canonical form."""
    batch, heads, rows, width = (int(d) for d in k.ty.shape)
    wide = op.broadcast_to(
        op.reshape(k, (batch, heads, 1, rows, width)), (batch, heads, 2, rows, width)
    )
    keys = op.reshape(op.permute_dims(wide, axes), (batch, 2 * heads, width, rows))
    return op.matmul(op.nn.softmax(op.matmul(q, keys), axis=-1), repeated(op, v))


def spread_out(op: Any, x: Any, times: int = 6) -> Any:
    """Repeat the only head, the second axis."""
    batch, _, *rest = (int(d) for d in x.ty.shape)
    return op.broadcast_to(x, (batch, times, *rest))


def _sole_head(op: Any, q: Any, k: Any, v: Any) -> Any:
    return of_repeated(op, q, spread_out(op, k), spread_out(op, v))


def _grouped_reference(q: Any, k: Any, v: Any) -> Any:
    k, v = np.repeat(k, 2, axis=1), np.repeat(v, 2, axis=1)
    return _softmax(q @ k.transpose(0, 1, 3, 2)) @ v


def plain(op: Any, q: Any, k: Any, v: Any) -> Any:
    """Attention without scale, mask or transposes."""
    return op.matmul(op.nn.softmax(op.matmul(q, k), axis=-1), v)


def _plain_reference(q: Any, k: Any, v: Any) -> Any:
    return _softmax(q @ k) @ v


def guarded_by_nan(
    op: Any,
    q: Any,
    k: Any,
    v: Any,
    *,
    test: str = "isnan",
    otherwise: Any = 0.0,
    returned: Callable[..., Any] | None = None,
) -> Any:
    """PyTorch's guard, of which a part may be changed or returned."""
    weights = op.nn.softmax(op.matmul(q, k), axis=-1)
    is_nan = getattr(op, test)(weights)
    zero = otherwise if isinstance(otherwise, relax.Expr) else op.const(otherwise)
    context = op.matmul(op.where(is_nan, zero, weights), v)
    return (context, returned(op, weights, is_nan)) if returned else context


def guarded_by_mask(
    op: Any,
    q: Any,
    k: Any,
    v: Any,
    mask: Any,
    *,
    combine: str = "add",
    of: Any = None,
    reduce: str = "max",
    axis: int = -1,
    keepdims: bool = True,
    compare: str = "equal",
    lowest: float = -np.inf,
    returned: Callable[..., Any] | None = None,
) -> Any:
    """The guard of ONNX's Attention, of which a part may be changed or returned."""
    scores = getattr(op, combine)(op.matmul(q, k), mask)
    weights = op.nn.softmax(scores, axis=-1)
    highest = getattr(op, reduce)(mask if of is None else of, axis=[axis], keepdims=keepdims)
    is_masked = getattr(op, compare)(highest, op.const(lowest))
    context = op.matmul(op.where(is_masked, op.const(0.0), weights), v)
    return (context, returned(op, weights, highest)) if returned else context


_HEADS = {"q": Operand((2, 5, 3, 4)), "k": Operand((2, 7, 3, 4)), "v": Operand((2, 7, 3, 6))}
ROWS = {"q": Operand((3, 5, 4)), "k": Operand((3, 4, 7)), "v": Operand((3, 7, 6))}

CASES = (
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
    Case(
        "two query heads to a key head, its keys turned",
        {"q": Operand((2, 6, 5, 4)), "k": Operand((2, 3, 7, 4)), "v": Operand((2, 3, 7, 6))},
        graph=_grouped_turned,
        reference=_grouped_reference,
    ),
    Case(
        "one key head for all query heads",
        {"q": Operand((2, 6, 5, 4)), "k": Operand((2, 1, 7, 4)), "v": Operand((2, 1, 7, 6))},
        graph=_sole_head,
        reference=lambda q, k, v: _softmax(q @ k.transpose(0, 1, 3, 2)) @ v,
    ),
    Case("rank 3, nothing transposed", ROWS, graph=plain, reference=_plain_reference),
    Case(
        "masked rows guarded by their NaN", ROWS, graph=guarded_by_nan, reference=_plain_reference
    ),
    Case(
        "masked rows guarded by their mask",
        {**ROWS, "mask": Operand((5, 7))},
        graph=guarded_by_mask,
        reference=lambda q, k, v, mask: _softmax(q @ k + mask) @ v,
    ),
)

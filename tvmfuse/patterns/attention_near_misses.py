"""What only looks like attention: each graph breaks one condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.patterns.attention_examples import (
    ROWS,
    guarded_by_mask,
    guarded_by_nan,
    of_repeated,
    of_turned,
    plain,
    repeated,
    spread_out,
)
from tvmfuse.patterns.base import Case, Operand

_MASKED = {**ROWS, "mask": Operand((5, 7))}
_SQUARE = {"q": Operand((3, 4, 4)), "k": Operand((3, 4, 4)), "v": Operand((3, 4, 4))}
_GROUPS = {"q": Operand((2, 6, 5, 4)), "k": Operand((2, 3, 7, 4)), "v": Operand((2, 3, 7, 6))}


def _weights_read(op: Any, q: Any, k: Any, v: Any) -> Any:
    weights = op.nn.softmax(op.matmul(q, k), axis=-1)
    return op.matmul(weights, v), op.exp(weights)


def _over_queries(op: Any, q: Any, k: Any, v: Any) -> Any:
    return op.matmul(op.nn.softmax(op.matmul(q, k), axis=1), v)


def _nan_guard(name: str, **changed: Any) -> Case:
    def graph(op: Any, q: Any, k: Any, v: Any) -> Any:
        return guarded_by_nan(op, q, k, v, **changed)

    return Case(name, ROWS, graph=graph)


def _mask_guard(name: str, **changed: Any) -> Case:
    def graph(op: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return guarded_by_mask(op, q, k, v, mask, **changed)

    return Case(name, {**_SQUARE, "mask": Operand((4, 4))}, graph=graph)


def _scores_changed(name: str, change: Callable[..., Any]) -> Case:
    def graph(op: Any, q: Any, k: Any, v: Any, mask: Any) -> Any:
        return op.matmul(op.nn.softmax(change(op, op.matmul(q, k), mask), axis=-1), v)

    return Case(name, _MASKED, graph=graph)


def _repeated_otherwise(
    name: str, repeat: Callable[..., Any], operands: Mapping[str, Operand] = _GROUPS
) -> Case:
    def graph(op: Any, q: Any, k: Any, v: Any) -> Any:
        return of_repeated(op, q, repeat(op, k), repeat(op, v))

    return Case(name, operands, graph=graph)


def _in_turns(op: Any, x: Any) -> Any:
    batch, heads, *rest = (int(d) for d in x.ty.shape)
    wide = op.broadcast_to(op.reshape(x, (batch, 1, heads, *rest)), (batch, 2, heads, *rest))
    return op.reshape(wide, (batch, 2 * heads, *rest))


def _filled_up(op: Any, x: Any) -> Any:
    batch, heads, *rest = (int(d) for d in x.ty.shape)
    parted = op.reshape(x, (batch, heads, 1, *rest))
    wide = op.nn.pad(parted, (0, 0, 0, 0, 0, 1, 0, 0, 0, 0))
    return op.reshape(wide, (batch, 2 * heads, *rest))


def _expanded(op: Any, x: Any) -> Any:
    batch, heads, *rest = (int(d) for d in x.ty.shape)
    wide = op.broadcast_to(op.expand_dims(x, 2), (batch, heads, 2, *rest))
    return op.reshape(wide, (batch, 2 * heads, *rest))


def _from_one_row(op: Any, x: Any) -> Any:
    wide = op.broadcast_to(op.reshape(x, (2, 3, 1, 7, -1)), (2, 3, 2, 7, int(x.ty.shape[-1])))
    return op.reshape(wide, (2, 6, 7, -1))


def _as_rows(op: Any, x: Any) -> Any:
    batch, heads, rows, width = (int(d) for d in x.ty.shape)
    wide = op.broadcast_to(
        op.reshape(x, (batch, heads, 1, rows, width)), (batch, heads, 2, rows, width)
    )
    return op.reshape(wide, (batch, heads, 2 * rows, width))


def _beside_heads(op: Any, q: Any, k: Any, v: Any) -> Any:
    """Repeat keys that lie before their heads."""
    keys, values = op.permute_dims(repeated(op, k), [0, 2, 3, 1]), repeated(op, v)
    return op.matmul(
        op.nn.softmax(op.matmul(q, keys), axis=-1), op.permute_dims(values, [0, 2, 1, 3])
    )


def _of_one_batch(op: Any, x: Any) -> Any:
    _, _, *rest = (int(d) for d in x.ty.shape)
    return op.broadcast_to(x, (2, 6, *rest))


def _sole_head_too(op: Any, q: Any, k: Any, v: Any) -> Any:
    keys = spread_out(op, k)
    return of_repeated(op, q, keys, spread_out(op, v)), keys


def _repeated_too(op: Any, q: Any, k: Any, v: Any) -> Any:
    keys = repeated(op, k)
    return of_repeated(op, q, keys, repeated(op, v)), keys


def _repeat_read(op: Any, q: Any, k: Any, v: Any) -> Any:
    parted = op.reshape(k, (2, 3, 1, 7, 4))
    keys = op.reshape(op.broadcast_to(parted, (2, 3, 2, 7, 4)), (2, 6, 7, 4))
    return of_repeated(op, q, keys, repeated(op, v)), op.exp(parted)


def _keys_alone(op: Any, q: Any, k: Any, v: Any) -> Any:
    return of_repeated(op, q, repeated(op, k), v)


def _by_two_and_three(op: Any, q: Any, k: Any, v: Any) -> Any:
    return of_repeated(op, q, repeated(op, k, 2), repeated(op, v, 3))


def _weights_only(op: Any, q: Any, k: Any, other: Any) -> Any:
    return op.multiply(op.nn.softmax(op.matmul(q, k), axis=-1), other)


def _weights_squared(op: Any, q: Any, k: Any, v: Any) -> Any:
    weights = op.nn.softmax(op.matmul(q, k), axis=-1)
    return op.matmul(weights, weights)


def _on_the_right(op: Any, q: Any, k: Any, v: Any) -> Any:
    return op.matmul(v, op.nn.softmax(op.matmul(q, k), axis=-1))


def _of_itself(op: Any, q: Any, v: Any) -> Any:
    turned = op.permute_dims(q, [0, 2, 1])
    return op.matmul(op.nn.softmax(op.matmul(turned, turned), axis=-1), v)


def _two_products(op: Any, q: Any, k: Any, v: Any) -> Any:
    scores = op.add(op.matmul(q, k), op.matmul(k, q))
    return op.matmul(op.nn.softmax(scores, axis=-1), v)


def _scores_too(op: Any, q: Any, k: Any, v: Any) -> Any:
    scores = op.matmul(q, k)
    return op.matmul(op.nn.softmax(scores, axis=-1), v), scores


def _scores_read(op: Any, q: Any, k: Any, v: Any) -> Any:
    scores = op.matmul(q, k)
    return op.matmul(op.nn.softmax(scores, axis=-1), v), op.exp(scores)


def _keys_read(op: Any, q: Any, k: Any, v: Any) -> Any:
    turned = op.permute_dims(op.permute_dims(k, [0, 2, 1]), [0, 2, 1])
    return plain(op, q, turned, v), op.exp(turned)


def _then_exp(op: Any, q: Any, k: Any, v: Any) -> Any:
    return op.exp(plain(op, q, k, v))


NEAR_MISSES = (
    Case("the weights are read elsewhere", ROWS, graph=_weights_read),
    Case("the softmax runs over the queries", ROWS, graph=_over_queries),
    Case(
        "in float64",
        {name: replace(operand, dtype="float64") for name, operand in ROWS.items()},
        graph=plain,
    ),
    Case(
        "there is one matrix only",
        {"q": Operand((5, 4)), "k": Operand((4, 7)), "v": Operand((7, 6))},
        graph=plain,
    ),
    Case("all batches share the keys", {**ROWS, "k": Operand((4, 7))}, graph=plain),
    Case("the weights are scaled", {**ROWS, "other": Operand((3, 5, 7))}, graph=_weights_only),
    Case("the weights meet themselves", _SQUARE, graph=_weights_squared),
    Case("the weights stand on the right", _SQUARE, graph=_on_the_right),
    Case("query and key are one transpose", _SQUARE, graph=_of_itself),
    Case("the scores are a sum of two products", _SQUARE, graph=_two_products),
    Case("the scores are a result, too", ROWS, graph=_scores_too),
    Case("the scores are read elsewhere", ROWS, graph=_scores_read),
    Case(
        "the keys are computed",
        ROWS,
        graph=lambda op, q, k, v: plain(op, q, op.exp(k), v),
    ),
    Case("the transposed keys are read elsewhere", ROWS, graph=_keys_read),
    Case("no transpose follows", ROWS, graph=_then_exp),
    _scores_changed("the scores are squashed", lambda op, x, mask: op.tanh(x)),
    _scores_changed("the mask is computed", lambda op, x, mask: op.add(x, op.exp(mask))),
    Case(
        "the mask brings the batches",
        {**ROWS, "q": Operand((1, 5, 4)), "k": Operand((1, 4, 7)), "mask": Operand((3, 5, 7))},
        graph=lambda op, q, k, v, mask: op.matmul(
            op.nn.softmax(op.add(op.matmul(q, k), mask), axis=-1), v
        ),
    ),
    _nan_guard("masked rows become ones", otherwise=1.0),
    _nan_guard("masked rows become a row", otherwise=relax.const(np.zeros(7, "float32"))),
    Case(
        "masked rows become what is given",
        {**ROWS, "given": Operand(())},
        graph=lambda op, q, k, v, given: guarded_by_nan(op, q, k, v, otherwise=given),
    ),
    _nan_guard("infinite weights become zero", test="isinf"),
    _nan_guard("the weights are a result, too", returned=lambda _, weights, __: weights),
    _nan_guard("the weights are read twice", returned=lambda op, weights, _: op.exp(weights)),
    _nan_guard("what is masked is a result, too", returned=lambda _, __, is_nan: is_nan),
    _mask_guard("the mask is multiplied", combine="multiply"),
    _mask_guard("the lowest of the mask counts", reduce="min"),
    _mask_guard("the highest of a column counts", axis=-2),
    _mask_guard("the highest stand in a row", keepdims=False),
    _mask_guard("what is not minus infinity becomes zero", compare="not_equal"),
    _mask_guard("what is masked with zero becomes zero", lowest=0.0),
    _mask_guard("the masked weights are a result, too", returned=lambda _, weights, __: weights),
    _mask_guard(
        "the masked weights are read twice", returned=lambda op, weights, _: op.exp(weights)
    ),
    _mask_guard("the highest are a result, too", returned=lambda _, __, highest: highest),
    Case(
        "another mask guards",
        {**_MASKED, "other": Operand((5, 7))},
        graph=lambda op, q, k, v, mask, other: guarded_by_mask(op, q, k, v, mask, of=other),
    ),
    Case(
        "heads are repeated in turns",
        {"q": Operand((2, 4, 5, 4)), "k": Operand((2, 2, 7, 4)), "v": Operand((2, 2, 7, 6))},
        graph=lambda op, q, k, v: of_repeated(op, q, _in_turns(op, k), _in_turns(op, v)),
    ),
    Case(
        "heads are repeated in turns, their keys turned",
        {"q": Operand((2, 4, 5, 4)), "k": Operand((2, 2, 7, 4)), "v": Operand((2, 2, 7, 6))},
        graph=lambda op, q, k, v: of_turned(op, q, k, v, [0, 2, 1, 4, 3]),
    ),
    _repeated_otherwise("heads are filled up with zeros", _filled_up),
    _repeated_otherwise("an axis is inserted, not reshaped", _expanded),
    _repeated_otherwise(
        "keys of all heads stand one after another",
        _from_one_row,
        {**_GROUPS, "k": Operand((6, 7, 4)), "v": Operand((6, 7, 6))},
    ),
    _repeated_otherwise(
        "keys are repeated, not heads", _as_rows, {**_GROUPS, "q": Operand((2, 3, 5, 4))}
    ),
    Case(
        "each row is repeated",
        {"q": Operand((3, 5, 4)), "k": Operand((3, 2, 8)), "v": Operand((3, 4, 6))},
        graph=lambda op, q, k, v: plain(op, q, repeated(op, k), repeated(op, v)),
    ),
    Case(
        "keys are repeated before their heads go first",
        {"q": Operand((2, 3, 5, 4)), "k": Operand((2, 4, 3, 4)), "v": Operand((2, 4, 3, 6))},
        graph=_beside_heads,
    ),
    _repeated_otherwise(
        "one batch of one head for all",
        _of_one_batch,
        {**_GROUPS, "k": Operand((1, 1, 7, 4)), "v": Operand((1, 1, 7, 6))},
    ),
    Case(
        "one row is repeated",
        {"q": Operand((2, 3, 5)), "k": Operand((2, 1, 5)), "v": Operand((2, 1, 6))},
        graph=lambda op, q, k, v: plain(op, q, spread_out(op, k, 5), spread_out(op, v, 5)),
    ),
    _repeated_otherwise(
        "the only head is tiled",
        lambda op, x: op.tile(x, (1, 6, 1, 1)),
        {**_GROUPS, "k": Operand((2, 1, 7, 4)), "v": Operand((2, 1, 7, 6))},
    ),
    Case(
        "the only head of keys, repeated, is a result, too",
        {**_GROUPS, "k": Operand((2, 1, 7, 4)), "v": Operand((2, 1, 7, 6))},
        graph=_sole_head_too,
    ),
    Case("repeated keys are a result, too", _GROUPS, graph=_repeated_too),
    Case("what is repeated is read elsewhere", _GROUPS, graph=_repeat_read),
    Case("only the keys are repeated", {**_GROUPS, "v": Operand((2, 6, 7, 6))}, graph=_keys_alone),
    Case(
        "keys and values are repeated differently",
        {**_GROUPS, "v": Operand((2, 2, 7, 6))},
        graph=_by_two_and_three,
    ),
)

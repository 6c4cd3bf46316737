"""Embeddings, their sum and its normalisation: what a transformer begins with.

BERT adds the embeddings of token, position and type; GPT-2 returns the sum, too. Each
task gathers the rows that it normalises, so no embedding is ever stored.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Set
from functools import partial
from typing import Any

from tvmfuse._tvm import relax
from tvmfuse.patterns import operators, references
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow

_ADD, _TAKE = "relax.add", "relax.take"
_MATRIX_RANK = 2
_MAX_OPERATORS = 16


def _three(
    op: Any, table: Any, ids: Any, types: Any, type_ids: Any, x: Any, gamma: Any, beta: Any
) -> Any:
    words, kinds = op.take(table, ids, axis=0), op.take(types, type_ids, axis=0)
    total = op.add(op.add(words, kinds), x)
    return op.nn.layer_norm(total, gamma, beta, axes=[-1], epsilon=1e-5)


def _three_reference(
    table: Any, ids: Any, types: Any, type_ids: Any, x: Any, gamma: Any, beta: Any
) -> Any:
    return references.layer_norm(table[ids] + types[type_ids] + x, gamma, beta)


def _alone(op: Any, table: Any, ids: Any, gamma: Any) -> Any:
    return op.nn.rms_norm(op.take(table, ids, axis=0), gamma, axes=[-1], epsilon=1e-5)


def _sum_too(op: Any, table: Any, ids: Any, x: Any, gamma: Any, beta: Any) -> Any:
    total = op.add(op.take(table, ids, axis=0), x)
    return op.nn.layer_norm(total, gamma, beta, axes=[-1], epsilon=1e-5), total


def _sum_too_reference(table: Any, ids: Any, x: Any, gamma: Any, beta: Any) -> Any:
    total = table[ids] + x
    return references.layer_norm(total, gamma, beta), total


def _from_the_end(op: Any, table: Any, ids: Any, gamma: Any) -> Any:
    size, zero = (relax.const(value, "int64") for value in (9, 0))
    return _alone(op, table, op.where(op.less(ids, zero), op.add(ids, size), ids), gamma)


def _columns(op: Any, table: Any, ids: Any, gamma: Any) -> Any:
    taken = op.take(table, ids, axis=1)
    return op.nn.rms_norm(taken, gamma, axes=[-1], epsilon=1e-5)


def _embedding_too(op: Any, table: Any, ids: Any, gamma: Any) -> Any:
    words = op.take(table, ids, axis=0)
    return op.nn.rms_norm(words, gamma, axes=[-1], epsilon=1e-5), op.exp(words)


def _over_another_axis(op: Any, table: Any, ids: Any, gamma: Any) -> Any:
    return op.nn.rms_norm(op.take(table, ids, axis=0), gamma, axes=[1], epsilon=1e-5)


def _of_a_row(op: Any, table: Any, ids: Any, gamma: Any) -> Any:
    return op.nn.rms_norm(op.take(table, ids, axis=0), gamma, axes=[-1], epsilon=1e-5)


def _without_a_table(op: Any, x: Any, y: Any, gamma: Any) -> Any:
    return op.nn.rms_norm(op.add(x, y), gamma, axes=[-1], epsilon=1e-5)


def _embedding_is_a_result(op: Any, table: Any, ids: Any, gamma: Any) -> Any:
    words = op.take(table, ids, axis=0)
    return op.nn.rms_norm(words, gamma, axes=[-1], epsilon=1e-5), words


def _cases() -> tuple[Case, ...]:
    ids = Operand((2, 5), dtype="int64", bounds=(0, 9))
    parameter = Operand((16,), is_constant=True)
    operands = {
        "table": Operand((9, 16), is_constant=True),
        "ids": ids,
        "types": Operand((2, 16), is_constant=True),
        "type_ids": Operand((2, 5), dtype="int64", bounds=(0, 2)),
        "x": Operand((1, 5, 16), is_constant=True),
        "gamma": parameter,
        "beta": parameter,
    }
    return (
        Case("token, type and position", operands, graph=_three, reference=_three_reference),
        Case(
            "one embedding and RMS norm",
            operands,
            graph=_alone,
            reference=lambda table, ids, gamma: references.rms_norm(table[ids], gamma),
        ),
        Case("the sum is a result too", operands, graph=_sum_too, reference=_sum_too_reference),
        Case(
            "negative indices count from the end",
            {**operands, "ids": Operand((2, 5), dtype="int64", bounds=(-9, 9))},
            graph=_from_the_end,
            reference=lambda table, ids, gamma: references.rms_norm(table[ids], gamma),
        ),
        Case(
            "the table comes in at run time",
            {**operands, "table": Operand((9, 16))},
            graph=_alone,
            reference=lambda table, ids, gamma: references.rms_norm(table[ids], gamma),
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    square = {
        "table": Operand((4, 4)),
        "ids": Operand((4,), dtype="int64", bounds=(0, 4)),
        "gamma": Operand((4,), is_constant=True),
    }
    cube = {**square, "ids": Operand((4, 4), dtype="int64", bounds=(0, 4))}
    return (
        Case("columns of the table are taken", square, graph=_columns),
        Case("the embedding is a result of another operator", square, graph=_embedding_too),
        Case("the embedding is a result, too", square, graph=_embedding_is_a_result),
        Case(
            "the table has three axes",
            {**square, "table": Operand((4, 2, 4))},
            graph=_of_a_row,
        ),
        Case(
            "nothing is gathered",
            {"x": Operand((3, 4)), "y": Operand((3, 4)), "gamma": square["gamma"]},
            graph=_without_a_table,
        ),
        Case(
            "the sum stretches the embedding",
            {**square, "ids": Operand((1,), dtype="int64", bounds=(0, 4)), "x": Operand((3, 4))},
            graph=lambda op, table, ids, x, gamma: _without_a_table(
                op, op.take(table, ids, axis=0), x, gamma
            ),
        ),
        Case(
            "the indices are gathered, too",
            {
                **square,
                "order": Operand((6,), dtype="int64", bounds=(0, 4)),
                "ids": Operand((4,), dtype="int64", bounds=(0, 6)),
            },
            graph=lambda op, table, order, ids, gamma: _alone(
                op, table, op.take(order, ids, axis=0), gamma
            ),
        ),
        Case("the norm runs over another axis", cube, graph=_over_another_axis),
    )


class EmbedNorm(Generator):
    """A norm of rows, the sum before it, and the rows of tables that the sum adds up."""

    name = "embed_norm"
    is_multi_output = True
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each norm with all sums and gathers before it, and with their indices."""
        for position, operator in enumerate(flow.operators):
            call = flow.value(position)
            if operator not in operators.NORMS or not flow.groupable[position]:
                continue
            if not operators.is_norm_of_rows(call):
                continue
            shape = operators.shape(call)
            norm = frozenset({position})
            rows = _before(flow, norm, partial(_is_row, flow, shape))
            gathers = frozenset(at for at in rows if flow.operators[at] == _TAKE)
            if not gathers:
                continue
            yield Match(tuple(sorted(norm | rows)), "reduction")
            indices = _before(flow, gathers, partial(_is_elementwise, flow))
            if indices:
                yield Match(tuple(sorted(norm | rows | indices)), "reduction")


def _before(flow: Dataflow, ends: Set[int], accepts: Callable[[int], bool]) -> frozenset[int]:
    """Return what ``ends`` are computed from in one way or several, as far as it is accepted.

    Bindings are visited from the last to the first, so that all readers of one are known.
    """
    found: set[int] = set()
    waiting = {read for end in ends for read in flow.deps[end]}
    while waiting and len(found) < _MAX_OPERATORS:
        position = max(waiting)
        waiting.remove(position)
        is_private = set(flow.users[position]) <= ends | found and position not in flow.escaping
        is_sum = flow.operators[position] == _ADD  # which may be a result, too
        if (is_private or is_sum) and flow.groupable[position] and accepts(position):
            found.add(position)
            waiting.update(flow.deps[position])
    return frozenset(found)


def _is_row(flow: Dataflow, shape: Any, position: int) -> bool:
    """Whether a binding is a sum or a gather of whole rows."""
    call = flow.value(position)
    if operators.shape(call) != shape:
        return False
    return flow.operators[position] == _ADD or (
        flow.operators[position] == _TAKE and _takes_rows(call)
    )


def _takes_rows(call: Any) -> bool:
    """Whether rows of a matrix are gathered."""
    table = call.args[0]
    axis = 0 if call.attrs.axis is None else int(call.attrs.axis)
    is_matrix = len(operators.shape(table) or ()) == _MATRIX_RANK
    return is_matrix and axis % _MATRIX_RANK == 0


def _is_elementwise(flow: Dataflow, position: int) -> bool:
    return flow.kinds[position] in ("elementwise", "broadcast")

"""The loss of a classifier: log-softmax, of which each row gives the entry of its label.

The logarithms of the other classes are never computed, nor is any stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from typing import Any

import numpy as np

from tvmfuse.patterns import operators, references
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.epilogue import prefixes

_SOFTMAX, _GATHER, _RESHAPE = "relax.nn.log_softmax", "relax.gather_elements", "relax.reshape"
_CLASSES = 7
_ROWS: Mapping[str, Operand] = {
    "x": Operand((5, _CLASSES)),
    "labels": Operand((5, 1), dtype="int64", bounds=(0, _CLASSES)),
    "weights": Operand((5, 1)),
}
_PIXELS: Mapping[str, Operand] = {
    "x": Operand((2, _CLASSES, 3, 4)),
    "labels": Operand((2, 1, 3, 4), dtype="int64", bounds=(0, _CLASSES)),
    "weights": Operand((2, 1, 3, 4)),
}


def _loss(op: Any, x: Any, labels: Any) -> Any:
    picked = op.gather_elements(op.nn.log_softmax(x, axis=1), labels, axis=1)
    return op.negative(picked)


def _weighted(op: Any, x: Any, labels: Any, weights: Any) -> Any:
    return op.multiply(_loss(op, x, labels), weights)


def _flat(op: Any, x: Any, labels: Any) -> Any:
    picked = op.gather_elements(op.nn.log_softmax(x, axis=1), labels, axis=1)
    return op.negative(op.reshape(picked, (int(x.ty.shape[0]),)))


def _loss_reference(x: Any, labels: Any) -> Any:
    logarithms = np.log(references.softmax(np.moveaxis(x, 1, -1)))
    return -np.take_along_axis(np.moveaxis(logarithms, -1, 1), labels, 1)


def _logarithms_too(op: Any, x: Any, labels: Any) -> Any:
    logarithms = op.nn.log_softmax(x, axis=1)
    return op.gather_elements(logarithms, labels, axis=1), logarithms


def _along_rows(op: Any, x: Any, labels: Any) -> Any:
    return op.negative(op.gather_elements(op.nn.log_softmax(x, axis=1), labels, axis=0))


def _of_a_softmax(op: Any, x: Any, labels: Any) -> Any:
    return op.negative(op.gather_elements(op.nn.softmax(x, axis=1), labels, axis=1))


def _over_rows(op: Any, x: Any, labels: Any) -> Any:
    return op.negative(op.gather_elements(op.nn.log_softmax(x, axis=0), labels, axis=1))


def _of_one_class(op: Any, x: Any, labels: Any) -> Any:
    one = op.strided_slice(op.nn.log_softmax(x, axis=1), [1], [0], [1])
    return op.negative(op.add(one, op.astype(labels, "float32")))


def _picked_too(op: Any, x: Any, labels: Any) -> Any:
    picked = op.gather_elements(op.nn.log_softmax(x, axis=1), labels, axis=1)
    return op.negative(op.reshape(picked, (int(x.ty.shape[0]),))), picked


def _picked_twice(op: Any, x: Any, labels: Any) -> Any:
    picked = op.gather_elements(op.nn.log_softmax(x, axis=1), labels, axis=1)
    return op.negative(op.reshape(picked, (int(x.ty.shape[0]),))), op.exp(picked)


def _summed(op: Any, x: Any, labels: Any) -> Any:
    picked = op.gather_elements(op.nn.log_softmax(x, axis=1), labels, axis=1)
    return op.negative(op.sum(picked, axis=[0]))


class CrossEntropy(Generator):
    """``-log_softmax(x)[label]``, with what follows it element by element."""

    name = "cross_entropy"
    cases = (
        Case("a batch", _ROWS, graph=_loss, reference=_loss_reference),
        Case("every pixel", _PIXELS, graph=_loss, reference=_loss_reference),
        Case(
            "weights of the labels",
            _PIXELS,
            graph=_weighted,
            reference=lambda x, labels, weights: _loss_reference(x, labels) * weights,
        ),
        Case(
            "one number for each row",
            _ROWS,
            graph=_flat,
            reference=lambda x, labels: _loss_reference(x, labels)[:, 0],
        ),
    )
    near_misses = (
        Case("all logarithms are a result, too", _ROWS, graph=_logarithms_too),
        Case("the labels pick rows", {**_ROWS, "x": Operand((9, 1))}, graph=_along_rows),
        Case("no logarithm is taken", _ROWS, graph=_of_a_softmax),
        Case("the softmax runs over the batch", _ROWS, graph=_over_rows),
        Case("nothing is gathered", _ROWS, graph=_of_one_class),
        Case("some rows have no label", {**_ROWS, "x": Operand((6, _CLASSES))}, graph=_loss),
        Case("what is picked is a result, too", _ROWS, graph=_picked_too),
        Case("what is picked is read twice", _ROWS, graph=_picked_twice),
        Case("the losses are added up", _ROWS, graph=_summed),
        Case(
            "several labels of a row",
            {**_ROWS, "labels": Operand((5, 2), dtype="int64", bounds=(0, _CLASSES))},
            graph=_loss,
        ),
    )

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each log-softmax with its gather, and with ever more of what follows."""
        for position, operator in enumerate(flow.operators):
            if operator != _GATHER or not flow.groupable[position]:
                continue
            softmax = flow.private_source(position, flow.value(position).args[0])
            if softmax is None or not _picks_one(flow, softmax, position):
                continue
            yield Match((softmax, position), "reduction")
            ends = [position, *_views(flow, position)]
            for end in ends:
                for members in prefixes(flow, end):
                    whole = {softmax, *ends[: ends.index(end) + 1], *members}
                    yield Match(tuple(sorted(whole)), "reduction")


def _picks_one(flow: Dataflow, softmax: int, gather: int) -> bool:
    """Whether a gather picks one class of each row of a log-softmax."""
    if flow.operators[softmax] != _SOFTMAX or not flow.groupable[softmax]:
        return False
    logarithms, call = flow.value(softmax), flow.value(gather)
    shape, picked = operators.shape(logarithms), operators.shape(call)
    if shape is None or picked is None:
        return False
    axis = int(call.attrs.axis) % len(shape)
    rows = [extent for i, extent in enumerate(shape) if i != axis]
    return (
        int(logarithms.attrs.axis) % len(shape) == axis
        and picked[axis] == 1
        and [extent for i, extent in enumerate(picked) if i != axis] == rows
    )


def _views(flow: Dataflow, gather: int) -> list[int]:
    """Return the view that drops the axis of the classes, if that alone reads the gather."""
    users = flow.users[gather]
    is_view = len(users) == 1 and flow.operators[users[0]] == _RESHAPE
    return list(users) if is_view and gather not in flow.escaping else []

"""What has no elements, or is made of none, is known when compiling."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.graphs import module, run
from tvmfuse._tvm import relax

OP = relax.op
WEIGHT = np.ones((8, 4), "float32")

# The graph, the shapes of its inputs, and what NumPy makes of them.
CASES: dict[str, tuple[Any, tuple[tuple[int, ...], ...], Any]] = {
    "product of no rows": (lambda x: OP.matmul(x, relax.const(WEIGHT)), ((0, 8),), (0, 4)),
    "product over nothing": (OP.matmul, ((3, 0), (0, 5)), np.zeros((3, 5))),
    "softmax of no rows": (OP.nn.softmax, ((0, 8),), (0, 8)),
    "sum over nothing": (lambda x: OP.sum(x, 1), ((3, 0),), np.zeros(3)),
    "product of nothing": (lambda x: OP.prod(x, 1), ((3, 0),), np.ones(3)),
    "mean of nothing": (lambda x: OP.mean(x, 1), ((3, 0),), np.full(3, np.nan)),
    "largest of nothing": (lambda x: OP.max(x, 1), ((3, 0),), np.full(3, -np.inf)),
    "transposed": (lambda x: OP.permute_dims(x, [1, 0]), ((2, 0),), (0, 2)),
    "attention of no queries": (OP.nn.attention, ((1, 0, 2, 8), *2 * [(1, 5, 2, 8)]), (1, 0, 2, 8)),
    "running sum": (lambda x: OP.cumsum(x, 1), ((2, 0),), (2, 0)),
    "running sum of no rows": (lambda x: OP.cumsum(x, 1), ((0, 2),), (0, 2)),
    "sorted": (lambda x: OP.sort(x, 1), ((2, 0),), (2, 0)),
    "order": (lambda x: OP.astype(OP.argsort(x, 1), "float32"), ((2, 0),), (2, 0)),
    "largest of no rows": (lambda x: OP.topk(x, 2, 1, "values"), ((0, 5),), (0, 2)),
    "nothing scattered": (
        lambda x, i, u: OP.scatter_elements(x, OP.astype(i, "int64"), u, 0),
        ((2, 3), (0, 3), (0, 3)),
        np.zeros((2, 3)),
    ),
    "nothing scattered by places": (
        lambda x, i, u: OP.scatter_nd(x, OP.astype(i, "int64"), u),
        ((2, 3), (0, 2), (0,)),
        np.zeros((2, 3)),
    ),
    "joined with what is": (lambda x, y: OP.concat([x, y], 1), ((2, 0), (2, 3)), np.zeros((2, 3))),
}


@pytest.mark.parametrize("name", CASES)
def test_empty_tensors_come_out_as_in_numpy(name: str) -> None:
    graph, shapes, expected = CASES[name]
    inputs = [np.zeros(shape, "float32") for shape in shapes]

    def emitted(*args: Any) -> Any:
        return relax.BlockBuilder.current().emit(graph(*args))

    (found,) = run(module(emitted, *inputs), *inputs)
    wanted = np.zeros(expected) if isinstance(expected, tuple) else expected
    assert found.shape == wanted.shape
    np.testing.assert_array_equal(found, wanted)


def test_several_results_without_elements_are_known_together() -> None:
    def largest(x: Any) -> Any:
        pair = relax.BlockBuilder.current().emit(OP.topk(x, 3, 1, "both"))
        return [OP.exp(pair[0]), pair[1]]

    values, places = run(module(largest, np.zeros((0, 5), "float32")), np.zeros((0, 5), "float32"))
    assert (values.shape, places.shape) == ((0, 3), (0, 3))

"""Canonical modules keep their numbers, names and outputs."""

import pytest

from tests.passes.canonical import X, assert_same_numbers, built, constant, normalised, statistics
from tvmfuse._tvm import relax
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.patterns.base import Operand
from tvmfuse.patterns.dataflow import Dataflow


class TestOddGraphs:
    """Shapes of graphs that rules must not stumble over."""

    @pytest.mark.parametrize(
        "graph",
        [
            lambda op, x: op.concat(op.split(x, 2, axis=1), axis=0),
            lambda op, x: (op.add(op.const(1.0), op.const(2.0)), op.exp(x)),
            lambda op, x: (x, x),
            lambda op, x: op.topk(x, 2, axis=1)[0],
            lambda op, x: op.strided_slice(x, axes=[0], begin=[0], end=[0]),
        ],
        ids=["tuple", "constant-output", "input-twice", "topk", "empty"],
    )
    def test_keep_their_numbers(self, graph):
        mod, values = built(graph, x=Operand((4, 4)))
        assert_same_numbers(mod, values)


def test_names_are_kept_as_labels():
    def graph(op, x, weight):
        y = op.block.emit(relax.op.nn.conv2d(x, weight), name_hint="stem")
        return normalised(op, y, statistics(4))

    mod, _ = built(graph, x=X, weight=constant(4, 6, 3, 3))
    flow = Dataflow.of("main", canonicalise(mod)["main"])
    assert flow.labels[0] == "stem"

"""Equal graphs have one form."""

import numpy as np
import pytest

from tests.passes.canonical import (
    X,
    assert_same_numbers,
    built,
)
from tvmfuse._tvm import relax, tvm
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.patterns.base import Operand
from tvmfuse.patterns.dataflow import Dataflow


class TestWhatDoesNothing:
    def test_is_dropped(self):
        def graph(op, x):
            y = op.nn.dropout(x, 0.5)[0]
            y = op.reshape(y, (2, 6, 5, 7))
            y = op.multiply(op.permute_dims(y, [0, 1, 2, 3]), op.const(1.0))
            y = op.strided_slice(y, axes=[0], begin=[0], end=[2], strides=[1])
            return op.nn.relu(op.concat([op.astype(y, "float32")], axis=1))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"nn.relu": 1}

    def test_looks_like_nothing_but_reverses_and_stays(self):
        def graph(op, x):
            return op.strided_slice(x, axes=[0], begin=[1], end=[-3], strides=[-1])

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"strided_slice": 1}

    def test_graph_of_nothing_returns_its_input(self):
        mod, values = built(lambda op, x: op.reshape(x, (2, 6, 5, 7)), x=X)
        assert assert_same_numbers(mod, values) == {}


class TestStacks:
    @pytest.mark.parametrize(
        ("reduction", "expected"),
        [
            ("sum", {"add": 2}),
            ("mean", {"add": 2, "multiply": 1}),
            ("max", {"maximum": 2}),
            ("min", {"minimum": 2}),
        ],
    )
    def test_reduction_over_a_stack_is_taken_apart(self, reduction, expected):
        def graph(op, x, y, z):
            return getattr(op, reduction)(op.stack([x, y, z], axis=0), axis=[0])

        mod, values = built(graph, x=X, y=X, z=X)
        assert assert_same_numbers(mod, values) == expected

    def test_reduction_over_another_axis_stays(self):
        def graph(op, x, y):
            return op.sum(op.stack([x, y], axis=0), axis=[1])

        mod, values = built(graph, x=X, y=X)
        assert assert_same_numbers(mod, values) == {"stack": 1, "sum": 1}


class TestUniformConstants:
    def test_constant_of_equal_elements_is_a_number(self):
        def graph(op, x):
            return op.add(x, relax.const(np.full((6, 5, 7), 1.5, "float32"), "float32"))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"add": 1}
        (binding,) = canonicalise(mod)["main"].body.blocks[0].bindings
        assert binding.value.args[1].value.shape == ()

    def test_constant_that_stretches_the_result_stays(self):
        def graph(op, x):
            return op.add(x, relax.const(np.full((3, 1), 1.5, "float32"), "float32"))

        mod, values = built(graph, x=Operand((7,)))
        assert assert_same_numbers(mod, values) == {"add": 1}


class TestClip:
    def kernel_of_te(self, op, x):
        """Bounds as TVM's ONNX importer writes them."""
        y = op.block.emit_te(tvm.topi.maximum, x, relax.const(0.0, "float32"))
        return op.block.emit_te(tvm.topi.minimum, y, relax.const(6.0, "float32"))

    def test_written_as_kernels_is_an_operator_again(self):
        mod, values = built(self.kernel_of_te, x=X)
        assert assert_same_numbers(mod, values) == {"clip": 1}

    def test_of_bounds_in_the_wrong_order_stays(self):
        def graph(op, x):
            return op.minimum(op.maximum(x, op.const(1.0)), op.const(-1.0))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"maximum": 1, "minimum": 1}

    def test_other_kernel_stays(self):
        def graph(op, x):
            return op.block.emit_te(tvm.topi.add, x, relax.const(1.0, "float32"))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"call_tir": 1}


class TestChoices:
    X = Operand((3, 4))

    def test_choice_that_is_settled_vanishes(self):
        never, always = (relax.const(np.full((3, 4), value)) for value in (False, True))

        def graph(op, x):
            y = op.where(never, relax.const(np.ones((3, 4), "float32")), x)
            return op.exp(op.where(always, y, x))

        mod, values = built(graph, x=self.X)
        assert assert_same_numbers(mod, values) == {"exp": 1}

    def test_choice_that_stretches_what_it_chooses_stays(self):
        def graph(op, x):
            return op.exp(op.where(relax.const(np.full((2, 3, 4), fill_value=False)), x, x))

        mod, values = built(graph, x=self.X)
        assert assert_same_numbers(mod, values)["where"] == 1

    def test_uniform_choice_becomes_a_number(self):
        def graph(op, x):
            hidden = relax.const(np.full((3, 4), -np.inf, "float32"))
            return op.where(op.greater(x, op.const(0.0)), x, hidden)

        mod, _ = built(graph, x=self.X)
        flow = Dataflow.of("main", canonicalise(mod)["main"])
        (where,) = (flow.value(i) for i, o in enumerate(flow.operators) if o == "relax.where")
        assert where.args[2].value.shape == ()

"""What is known when compiling is computed then, and once."""

from tests.passes.canonical import X, assert_same_numbers, built, constant
from tvmfuse._tvm import relax
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.patterns.base import Operand
from tvmfuse.patterns.dataflow import Dataflow


class TestConstants:
    def test_transposed_weight_is_folded(self):
        def graph(op, x, weight):
            return op.matmul(x, op.permute_dims(weight))

        mod, values = built(graph, x=Operand((3, 5)), weight=constant(4, 5))
        assert assert_same_numbers(mod, values) == {"matmul": 1}

    def test_small_constant_is_not_blown_up(self):
        def graph(op, x, row):
            return op.add(x, op.broadcast_to(row, (64, 32, 32)))

        mod, values = built(graph, x=Operand((64, 32, 32)), row=constant(32))
        assert assert_same_numbers(mod, values) == {"broadcast_to": 1, "add": 1}

    def test_gathered_rows_of_a_constant_are_folded(self):
        def graph(op, x, table):
            ids = relax.const([2, 0, 9], "int64")
            return op.add(x, op.take(table, ids, axis=0, mode="clip"))

        mod, values = built(graph, x=Operand((3, 5)), table=constant(4, 5))
        assert assert_same_numbers(mod, values) == {"add": 1}

    def test_shape_arithmetic_is_folded(self):
        def graph(op, x):
            extents = op.shape_to_tensor(op.shape_of(x))
            last = op.take(extents, relax.const(3, "int64"), axis=0)
            return op.multiply(x, op.astype(last, "float32"))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"multiply": 1}

    def test_weight_that_is_read_twice_stays_one_constant(self):
        def graph(op, x, weight):
            first = op.matmul(x, op.permute_dims(weight))
            return op.matmul(first, op.permute_dims(weight))

        mod, _ = built(graph, x=Operand((3, 5)), weight=constant(5, 5))
        flow = Dataflow.of("main", canonicalise(mod)["main"])
        assert list(flow.readers_of_constant.values()) == [2]

    def test_integers_are_not_folded_as_floats(self):
        def graph(op, x):
            y = op.divide(x, relax.const(3, "int32"))
            return op.subtract(y, relax.const(2**30 + 1, "int32"))

        mod, values = built(graph, "int32", x=X)
        assert assert_same_numbers(mod, values, "int32") == {"divide": 1, "subtract": 1}


class TestEqualValues:
    def test_are_computed_once(self):
        def graph(op, x, y):
            left = op.nn.relu(op.matmul(x, y))
            right = op.nn.relu(op.matmul(x, y))
            return op.add(left, op.exp(right))

        mod, values = built(graph, x=Operand((3, 3)), y=Operand((3, 3)))
        expected = {"matmul": 1, "nn.relu": 1, "exp": 1, "add": 1}
        assert assert_same_numbers(mod, values) == expected

    def test_with_other_attributes_are_not_shared(self):
        def graph(op, x):
            return op.nn.softmax(x, axis=0), op.nn.softmax(x, axis=1)

        mod, values = built(graph, x=Operand((3, 4)))
        assert assert_same_numbers(mod, values) == {"nn.softmax": 2}

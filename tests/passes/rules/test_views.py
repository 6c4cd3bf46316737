"""Views stand behind what follows a product, and before a norm that feeds one."""

import pytest

from tests.passes.canonical import assert_same_numbers, built, constant
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.patterns.base import Operand
from tvmfuse.patterns.dataflow import Dataflow


class TestViewsOfProducts:
    W = constant(6, 8, spread=0.4)

    def test_activation_and_residual_go_before_the_view(self):
        def graph(op, x, w, residual):
            unfolded = op.reshape(op.matmul(x, w), (2, 5, 8))
            return op.add(op.nn.relu(unfolded), residual)

        mod, values = built(graph, x=Operand((10, 6)), w=self.W, residual=Operand((2, 5, 8)))
        left = assert_same_numbers(mod, values)
        assert left == {"matmul": 1, "nn.relu": 1, "reshape": 2, "add": 1}
        flow = Dataflow.of("main", canonicalise(mod)["main"])
        assert flow.operators[-1] == "relax.reshape"

    def test_two_products_of_different_views_come_to_rest(self):
        def graph(op, x, y, w):
            left = op.reshape(op.matmul(x, w), (2, 5, 8))
            right = op.reshape(op.matmul(y, w), (2, 5, 8))
            return op.nn.relu(op.add(left, right))

        mod, values = built(graph, x=Operand((10, 6)), y=Operand((5, 2, 6)), w=self.W)
        assert assert_same_numbers(mod, values)["add"] == 1

    def test_offset_along_an_axis_that_the_view_makes_stays_behind_it(self):
        def graph(op, x, w, offset):
            return op.add(op.reshape(op.matmul(x, w), (2, 5, 8)), offset)

        mod, values = built(graph, x=Operand((10, 6)), w=self.W, offset=Operand((5, 1)))
        assert assert_same_numbers(mod, values) == {"matmul": 1, "reshape": 1, "add": 1}

    @pytest.mark.parametrize("axis", [1, 2])
    def test_slopes_that_belong_to_an_axis_of_the_view_stay_behind_it(self, axis):
        def graph(op, x, w, slopes):
            return op.nn.prelu(op.reshape(op.matmul(x, w), (2, 8, 8)), slopes, axis=axis)

        mod, values = built(graph, x=Operand((16, 6)), w=self.W, slopes=Operand((8,)))
        assert assert_same_numbers(mod, values) == {"matmul": 1, "reshape": 1, "nn.prelu": 1}


class TestViewsOfNorms:
    def graph(self, op, x, gamma, w, *, shape=(10, 6)):
        normal = op.nn.rms_norm(x, gamma, axes=[-1], epsilon=1e-5)
        return op.matmul(op.reshape(normal, shape), w)

    def test_rows_are_flattened_before_they_are_normalised(self):
        operands = {"x": Operand((2, 5, 6)), "gamma": constant(6), "w": constant(6, 8, spread=0.4)}
        mod, values = built(self.graph, **operands)
        assert assert_same_numbers(mod, values) == {"reshape": 1, "nn.rms_norm": 1, "matmul": 1}
        flow = Dataflow.of("main", canonicalise(mod)["main"])
        assert flow.operators[0] == "relax.reshape"

    def test_view_that_cuts_rows_stays_behind_the_norm(self):
        def graph(op, x, gamma, w):
            return self.graph(op, x, gamma, w, shape=(5, 12))

        operands = {"x": Operand((2, 5, 6)), "gamma": constant(6), "w": constant(12, 8, spread=0.3)}
        mod, values = built(graph, **operands)
        assert_same_numbers(mod, values)
        flow = Dataflow.of("main", canonicalise(mod)["main"])
        assert flow.operators[0] == "relax.nn.rms_norm"

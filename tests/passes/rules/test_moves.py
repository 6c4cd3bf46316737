"""Transpositions and views are few."""

from tests.passes.canonical import X, assert_same_numbers, built
from tvmfuse.patterns.base import Operand


class TestMoves:
    def test_transpositions_around_a_reshape_of_unit_axes_meet(self):
        def graph(op, x):
            y = op.reshape(op.permute_dims(x, [0, 2, 1, 3]), (3, 5, 4))
            return op.nn.relu(op.reshape(op.permute_dims(y, [0, 2, 1]), (1, 3, 4, 5)))

        mod, values = built(graph, x=Operand((1, 5, 3, 4)))
        assert assert_same_numbers(mod, values) == {"permute_dims": 1, "nn.relu": 1}

    def test_transposition_of_unit_axes_is_a_view(self):
        mod, values = built(lambda op, x: op.permute_dims(x, [1, 0, 2]), x=Operand((1, 4, 5)))
        assert assert_same_numbers(mod, values) == {"reshape": 1}

    def test_chain_of_views_is_one(self):
        def graph(op, x):
            return op.nn.relu(op.squeeze(op.expand_dims(op.reshape(x, (12, 5, 7)), [0]), [0]))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"reshape": 1, "nn.relu": 1}

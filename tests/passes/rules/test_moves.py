"""Transpositions and views are few."""

import pytest

from tests.passes.canonical import X, assert_same_numbers, built, constant
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

    def test_heads_merged_into_the_batch_for_a_transposition_stay_apart(self):
        def graph(op, x):
            merged = op.permute_dims(op.reshape(x, (6, 4, 5)), [0, 2, 1])
            return op.nn.relu(op.reshape(merged, (2, 3, 5, 4)))

        mod, values = built(graph, x=Operand((2, 3, 4, 5)))
        assert assert_same_numbers(mod, values) == {"permute_dims": 1, "nn.relu": 1}

    def test_reshape_that_cuts_across_axes_stays_before_the_transposition(self):
        def graph(op, x):
            cut = op.permute_dims(op.reshape(x, (4, 6, 5)), [0, 2, 1])
            return op.nn.relu(op.reshape(cut, (2, 2, 5, 6)))

        mod, values = built(graph, x=Operand((2, 3, 4, 5)))
        kept = {"reshape": 2, "permute_dims": 1, "nn.relu": 1}
        assert assert_same_numbers(mod, values) == kept


Q, K = Operand((2, 3, 4)), Operand((2, 5, 4))


class TestScaleOfAProduct:
    def test_scales_of_both_operands_are_one_behind_it(self):
        def graph(op, q, k):
            left, right = op.multiply(q, op.const(0.5)), op.permute_dims(k, [0, 2, 1])
            return op.matmul(left, op.multiply(right, op.const(0.25)))

        mod, values = built(graph, q=Q, k=K)
        left = {"permute_dims": 1, "matmul": 1, "multiply": 1}
        assert assert_same_numbers(mod, values) == left

    def test_scale_goes_into_a_weight_rather_than_behind(self):
        def graph(op, q, k, w):
            projected = op.multiply(op.matmul(q, w), op.const(0.5))
            return op.matmul(projected, op.permute_dims(k, [0, 2, 1]))

        mod, values = built(graph, q=Q, k=K, w=constant(4, 4, spread=0.5))
        assert assert_same_numbers(mod, values) == {"permute_dims": 1, "matmul": 2}

    def test_scale_that_another_operator_reads_stays(self):
        def graph(op, q, k):
            scaled = op.multiply(q, op.const(0.5))
            return op.matmul(scaled, op.permute_dims(k, [0, 2, 1])), op.exp(scaled)

        mod, values = built(graph, q=Q, k=K)
        canonical = assert_same_numbers(mod, values)
        assert canonical["multiply"] == 1
        assert canonical["exp"] == 1

    def test_half_precision_is_scaled_first_lest_it_overflow(self):
        def graph(op, q, k):
            scaled = op.multiply(q, op.const(0.001))
            return op.matmul(scaled, op.permute_dims(k, [0, 2, 1]))

        q, k = (Operand(item.shape, spread=300.0) for item in (Q, K))
        mod, values = built(graph, "float16", q=q, k=k)
        assert_same_numbers(mod, values, "float16")


class TestParts:
    @pytest.mark.parametrize("axis", [0, 1, -1])
    def test_parts_of_a_split_are_slices(self, axis):
        def graph(op, x):
            parts = op.split(x, [1, 2], axis=axis)
            return op.nn.relu(parts[0]), op.exp(parts[2])

        mod, values = built(graph, x=Operand((3, 5, 4)))
        assert assert_same_numbers(mod, values) == {"strided_slice": 2, "nn.relu": 1, "exp": 1}

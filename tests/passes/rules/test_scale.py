"""Constant factors and offsets move towards the weights before them."""

import pytest

from tests.passes.canonical import X, assert_same_numbers, built, constant, normalised, statistics
from tvmfuse.patterns.base import Operand


class TestScaleAfterAnyProduct:
    @pytest.mark.parametrize("groups", [1, 2])
    def test_of_a_transposed_convolution_is_folded(self, groups):
        def graph(op, x, weight, scale):
            y = op.nn.conv2d_transpose(x, weight, groups=groups, strides=(2, 2))
            return op.multiply(y, scale)

        weight = constant(6, 4 // groups, 3, 3)
        mod, values = built(graph, x=X, weight=weight, scale=constant(4, 1, 1))
        assert assert_same_numbers(mod, values) == {"nn.conv2d_transpose": 1}

    def test_of_a_1d_convolution_is_folded(self):
        def graph(op, x, weight, scale):
            return op.multiply(scale, op.nn.conv1d(x, weight, padding=1))

        operands = {"x": Operand((2, 3, 9)), "weight": constant(4, 3, 3), "scale": constant(4, 1)}
        mod, values = built(graph, **operands)
        assert assert_same_numbers(mod, values) == {"nn.conv1d": 1}

    def test_of_a_matrix_product_is_folded(self):
        def graph(op, x, weight, scale):
            return op.multiply(op.matmul(x, weight), scale)

        mod, values = built(graph, x=Operand((2, 3, 5)), weight=constant(5, 4), scale=constant(4))
        assert assert_same_numbers(mod, values) == {"matmul": 1}

    def test_that_varies_along_the_rows_is_not_folded(self):
        def graph(op, x, weight, scale):
            return op.multiply(op.matmul(x, weight), scale)

        mod, values = built(graph, x=Operand((4, 4)), weight=constant(4, 4), scale=constant(4, 1))
        assert assert_same_numbers(mod, values) == {"matmul": 1, "multiply": 1}

    def test_that_stretches_the_product_is_not_folded(self):
        def graph(op, x, weight, scale):
            return op.multiply(op.matmul(x, weight), scale)

        mod, values = built(graph, x=Operand((3, 4)), weight=constant(4, 1), scale=constant(5))
        assert assert_same_numbers(mod, values) == {"matmul": 1, "multiply": 1}

    def test_of_integers_is_left_alone(self):
        def graph(op, x, weight, scale):
            return op.multiply(op.matmul(x, weight), scale)

        operands = {"x": Operand((3, 4)), "weight": constant(4, 4), "scale": constant(4)}
        mod, values = built(graph, "int32", **operands)
        assert assert_same_numbers(mod, values, "int32") == {"matmul": 1, "multiply": 1}

    def test_of_attention_heads_goes_before_their_transposition(self):
        def graph(op, x, weight, bias):
            heads = op.reshape(op.add(op.matmul(x, weight), bias), (1, 5, 2, 4))
            return op.multiply(op.permute_dims(heads, [0, 2, 1, 3]), op.const(0.5))

        mod, values = built(graph, x=Operand((1, 5, 8)), weight=constant(8, 8), bias=constant(8))
        counts = assert_same_numbers(mod, values)
        assert counts == {"matmul": 1, "add": 1, "reshape": 1, "permute_dims": 1}


class TestChainsOfScales:
    def test_norm_after_norm_is_one_scale_and_shift(self):
        def graph(op, x):
            return normalised(op, normalised(op, x, statistics(6)), statistics(6, mean=[2] * 6))

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"multiply": 1, "add": 1}

    def test_offset_that_is_read_elsewhere_stays(self):
        def graph(op, x):
            y = op.add(op.multiply(x, op.const(2.0)), op.const(3.0))
            return op.multiply(y, op.const(4.0)), op.exp(y)

        mod, values = built(graph, x=X)
        assert assert_same_numbers(mod, values) == {"multiply": 2, "add": 1, "exp": 1}

    def test_offsets_that_would_grow_are_not_merged(self):
        def graph(op, x, row, column):
            return op.add(op.add(x, row), column)

        operands = {"x": Operand((40, 50)), "row": constant(50), "column": constant(40, 1)}
        mod, values = built(graph, **operands)
        assert assert_same_numbers(mod, values) == {"add": 2}

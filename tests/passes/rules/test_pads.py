"""Padding goes into convolutions, and into nothing that it would change."""

import pytest

from tests.passes.canonical import assert_same_numbers, built, constant
from tvmfuse._tvm import relax, topi
from tvmfuse.patterns.base import Operand
from tvmfuse.testing import random_array

IMAGE, ROWS = Operand((2, 4, 6, 7)), Operand((2, 4, 9))


class TestPads:
    @pytest.mark.parametrize("padding", [(0, 0), (1, 2), (0, 1, 2, 0)])
    def test_padding_by_zeros_is_the_convolutions(self, padding):
        def graph(op, x, w):
            padded = op.nn.pad(x, (0, 0, 0, 0, 1, 0, 3, 2))
            return op.nn.conv2d(padded, w, padding=padding, strides=(2, 1))

        mod, values = built(graph, x=IMAGE, w=constant(3, 4, 2, 3))
        assert assert_same_numbers(mod, values) == {"nn.conv2d": 1}

    def test_padding_of_rows_is_the_convolutions(self):
        def graph(op, x, w):
            return op.nn.conv1d(op.nn.pad(x, (0, 0, 0, 0, 2, 1)), w, padding=1)

        mod, values = built(graph, x=ROWS, w=constant(3, 4, 3))
        assert assert_same_numbers(mod, values) == {"nn.conv1d": 1}

    @pytest.mark.parametrize(
        ("widths", "value"), [((0, 0, 0, 0, 1, 1, 1, 1), 1.0), ((0, 0, 1, 1, 0, 0, 0, 0), 0.0)]
    )
    def test_other_padding_stays(self, widths, value):
        channels = 4 + sum(widths[2:4])

        def graph(op, x, w):
            return op.nn.conv2d(op.nn.pad(x, widths, "constant", value), w)

        mod, values = built(graph, x=IMAGE, w=constant(3, channels, 2, 2))
        assert assert_same_numbers(mod, values) == {"nn.conv2d": 1, "nn.pad": 1}

    def test_padding_that_a_pooling_reads_stays(self):
        def graph(op, x):
            padded = op.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1))
            return op.nn.max_pool2d(padded, pool_size=(2, 2))

        mod, values = built(graph, x=IMAGE)
        assert assert_same_numbers(mod, values) == {"nn.max_pool2d": 1, "nn.pad": 1}

    @pytest.mark.parametrize(
        ("front", "back"), [((0, 0), (1, 1)), ((1, 1), (0, 0)), ((1, 2), (2, 2))]
    )
    def test_an_importers_own_kernel_for_same_padding_is_recognised(self, front, back):
        block = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((1, 4, 6, 6), "float32"))
        w = relax.Var("w", relax.TensorType((3, 4, 2, 2), "float32"))
        with block.function("main", [x, w]):
            padded = block.emit_te(topi.nn.pad, x, [0, 0, *front], [0, 0, *back], 0.0)
            block.emit_func_output(block.emit(relax.op.nn.conv2d(padded, w)))
        shapes = {"x": (1, 4, 6, 6), "w": (3, 4, 2, 2)}
        arrays = {name: random_array(shape, "float32") for name, shape in shapes.items()}
        assert assert_same_numbers(block.get(), arrays) == {"nn.conv2d": 1}

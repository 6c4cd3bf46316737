"""Blocks spread from convolutions as far as they can; the rest stays plain."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import graphs
from tests.passes.layout.steps import (
    IMAGE,
    MACHINE,
    Graph,
    assert_same_numbers,
    called,
    constant,
    conv,
    laid_out,
    op,
    steps,
)
from tvmfuse import testing
from tvmfuse._tvm import relax, tirx, tvm_ffi
from tvmfuse.passes.layout import layout
from tvmfuse.passes.partition import partition
from tvmfuse.plan import FusionPlan


class TestWhatWorksOnBlocks:
    def test_channels_that_fill_no_block(self) -> None:
        def graph(x: Any) -> Any:
            y = op.add(conv(x, 12, channels=9), constant(1, 12, 1, 1))
            return conv(op.nn.gelu(y), 5, channels=12, seed=2)

        assert steps(graph, (1, 9, 5, 5)) == [
            "reshape",
            "conv2d",
            "add",
            "gelu",
            "conv2d",
            "from_blocked",
        ]
        assert_same_numbers(graph, (1, 9, 5, 5))

    @pytest.mark.parametrize(
        ("shape", "kernel", "attrs"),
        [
            ((1, 16, 6, 7), (4, 4), {"strides": 2, "padding": 1}),
            ((1, 16, 6, 7), (3, 3), {"strides": 2, "padding": (1, 0, 1, 1), "output_padding": 1}),
            ((2, 16, 9), (16,), {"strides": 8, "padding": 4}),
        ],
    )
    def test_transposed_convolutions(
        self, shape: tuple[int, ...], kernel: tuple[int, ...], attrs: dict[str, Any]
    ) -> None:
        transpose = op.nn.conv2d_transpose if len(shape) == 4 else op.nn.conv1d_transpose

        def graph(x: Any) -> Any:
            y = transpose(op.nn.relu(x), constant(16, 12, *kernel), **attrs)
            return op.nn.relu(op.add(y, constant(12, *(1,) * len(kernel))))

        name = f"conv{len(kernel)}d_transpose"
        assert steps(graph, shape) == ["relu", "to_blocked", name, "add", "relu", "from_blocked"]
        assert_same_numbers(graph, shape)

    @pytest.mark.parametrize("groups", [2, 4, 12])
    def test_groups_that_are_no_whole_blocks(self, groups: int) -> None:
        def graph(x: Any) -> Any:
            return op.nn.relu(conv(x, 24, channels=12, groups=groups))

        assert steps(graph, (1, 12, 5, 4)) == ["to_blocked", "conv2d", "relu", "from_blocked"]
        assert_same_numbers(graph, (1, 12, 5, 4))

    @pytest.mark.parametrize("kernel", [1, 3])
    @pytest.mark.parametrize(("filters", "channels"), [(16, 16), (12, 9), (8, 3)])
    def test_weights_that_are_known_only_at_run_time(
        self, filters: int, channels: int, kernel: int
    ) -> None:
        def graph(x: Any, weight: Any) -> Any:
            return op.nn.relu(op.nn.conv2d(x, op.tanh(weight), padding=kernel // 2))

        shapes = (2, channels, 5, 6), (filters, channels, kernel, kernel)
        found = steps(graph, *shapes)
        assert found[0] == "tanh"
        assert found[-3:] == ["conv2d", "relu", "from_blocked"]
        assert_same_numbers(graph, *shapes)

    def test_a_row_of_depthwise_weights_known_only_at_run_time(self) -> None:
        def graph(x: Any, weight: Any) -> Any:
            return op.nn.relu(op.nn.conv1d(x, weight, padding=1, groups=12))

        assert steps(graph, (1, 12, 9), (12, 1, 3))[-1] == "from_blocked"
        assert_same_numbers(graph, (1, 12, 9), (12, 1, 3))

    def test_infinities_in_blocks_that_are_not_full_stay_infinities(self) -> None:
        x = np.abs(testing.random_array((1, 9, 5, 5), "float32"))
        x[0, 3, 2, 2] = np.inf
        ones = [relax.const(np.ones(shape, "float32")) for shape in ((12, 9, 3, 3), (5, 12, 1, 1))]

        def graph(x: Any) -> Any:
            y = op.nn.relu(op.nn.conv2d(x, ones[0], padding=1))
            return op.nn.conv2d(y, ones[1])

        (found,) = graphs.run(laid_out(graphs.module(graph, x.shape)), x)
        assert np.isinf(found[:, :, 1:4, 1:4]).all()
        assert not np.isnan(found).any()

    def test_what_unused_lanes_hold_never_reaches_a_result(self) -> None:
        def graph(x: Any) -> Any:
            shift = np.linspace(5, 5.1, 12, dtype="float32")[:, None, None]
            y = op.subtract(op.tanh(conv(x, 12)), relax.const(shift))
            for _ in range(5):
                y = op.exp(y)  # runs away to infinity where a lane began with 0
            return conv(y, 8, channels=12, seed=2)

        assert_same_numbers(graph, IMAGE)

    @pytest.mark.parametrize("channels", [16, 12])
    def test_the_slopes_of_a_prelu(self, channels: int) -> None:
        def graph(x: Any) -> Any:
            y = op.nn.prelu(conv(x, channels), constant(channels))
            return conv(y, channels=channels, seed=2)

        assert steps(graph, IMAGE) == ["reshape", "conv2d", "prelu", "conv2d", "from_blocked"]
        assert_same_numbers(graph, IMAGE)

    def test_joining_whole_blocks(self) -> None:
        def graph(x: Any) -> Any:
            return conv(
                op.concat([conv(x, 16), conv(x, 12, seed=2)], axis=1), 8, channels=28, seed=3
            )

        assert steps(graph, IMAGE).count("from_blocked") == 1
        assert_same_numbers(graph, IMAGE)

    @pytest.mark.parametrize("keepdims", [True, False])
    def test_the_mean_of_an_image_and_a_product_after_it(self, *, keepdims: bool) -> None:
        def graph(x: Any) -> Any:
            pooled = op.mean(conv(x, channels=8), [2, 3], keepdims=keepdims)
            return op.matmul(op.reshape(pooled, (2, 16)), constant(16, 10))

        found = steps(graph, (2, 8, 5, 5))
        assert found[:3] == ["reshape", "conv2d", "mean"]
        assert "to_blocked" not in found
        assert_same_numbers(graph, (2, 8, 5, 5))

    def test_global_pooling_and_the_scaling_of_channels(self) -> None:
        def graph(x: Any) -> Any:
            y = conv(x)
            gate = op.sigmoid(conv(op.nn.adaptive_avg_pool2d(y, 1), kernel=1, seed=2))
            return op.multiply(y, gate)

        found = steps(graph, IMAGE)
        assert (found.count("to_blocked"), found.count("from_blocked")) == (0, 1)
        assert_same_numbers(graph, IMAGE)

    @pytest.mark.parametrize("shape", [(1, 1, 6, 7), (6, 7), (7,), (16, 1, 1), ()])
    def test_an_operand_that_stretches(self, shape: tuple[int, ...]) -> None:
        def graph(x: Any, mask: Any) -> Any:
            return op.multiply(conv(x), mask)

        assert "from_blocked" not in steps(graph, IMAGE, shape)[:-1]
        assert_same_numbers(graph, IMAGE, shape)

    def test_rows_as_images_of_height_one(self) -> None:
        def graph(x: Any) -> Any:
            y = op.nn.conv1d(x, constant(24, 16, 3), padding=1)
            return op.nn.max_pool1d(op.nn.relu(y), 2, 2)

        assert steps(graph, (2, 16, 20)) == [
            "reshape",
            "conv1d",
            "relu",
            "max_pool1d",
            "from_blocked",
        ]
        assert_same_numbers(graph, (2, 16, 20))

    @pytest.mark.parametrize("groups", [16, 2], ids=["depthwise", "groups of whole blocks"])
    def test_grouped_convolutions(self, groups: int) -> None:
        def graph(x: Any) -> Any:
            return conv(op.nn.relu(conv(x)), groups=groups, seed=2)

        assert steps(graph, IMAGE) == ["reshape", "conv2d", "relu", "conv2d", "from_blocked"]
        assert_same_numbers(graph, IMAGE)


POOLS = [
    {"padding": padding, "strides": strides, "ceil_mode": ceil, "count_include_pad": count}
    for padding in (0, 1, (0, 1, 1, 0))
    for strides in (2, 3)
    for ceil in (False, True)
    for count in (False, True)
]


@pytest.mark.parametrize("name", ["max_pool2d", "avg_pool2d"])
def test_pooling_with_every_option(name: str) -> None:
    def graph(x: Any) -> Any:
        y = conv(x)
        return [getattr(op.nn, name)(y, (3, 3), **options) for options in POOLS]

    assert_same_numbers(graph, (1, 16, 9, 10))


class TestWhatStaysPlain:
    @pytest.mark.parametrize(
        ("name", "graph", "inputs"),
        [
            (
                "a prelu along the rows",
                lambda x: op.nn.prelu(conv(x), constant(6), axis=2),
                (IMAGE,),
            ),
            ("exponentials of a block not full", lambda x: op.exp(op.tanh(conv(x, 12))), (IMAGE,)),
            ("the root of a block not full", lambda x: op.sqrt(conv(x, 12)), (IMAGE,)),
            ("a softmax", lambda x: op.nn.softmax(conv(x), 1), (IMAGE,)),
            ("a mean over channels", lambda x: op.mean(conv(x), [1]), (IMAGE,)),
            (
                "an operand of higher rank",
                lambda x, y: op.add(conv(x), y),
                (IMAGE, (2, 1, 16, 6, 7)),
            ),
            (
                "pooling to more than one pixel",
                lambda x: op.nn.adaptive_avg_pool2d(conv(x), (2, 2)),
                ((1, 16, 6, 6),),
            ),
        ],
    )
    def test_after_a_convolution(self, name: str, graph: Graph, inputs: Any) -> None:
        found = steps(graph, *inputs)
        assert found.index("from_blocked") < len(found) - 1, name
        assert found[-1] != "from_blocked", name
        assert_same_numbers(graph, *inputs)

    @pytest.mark.parametrize(
        ("graph", "inputs"),
        [
            (lambda x, w: op.nn.conv2d(x, w, groups=4), (IMAGE, (8, 4, 3, 3))),
            (lambda x, w: op.nn.conv2d_transpose(x, w), (IMAGE, (16, 8, 3, 3))),
            (
                lambda x: op.nn.conv2d(
                    x, constant(3, 3, 16, 8), data_layout="NHWC", kernel_layout="HWIO"
                ),
                ((1, 6, 7, 16),),
            ),
            (
                lambda x: op.nn.conv3d(x, constant(8, 16, 3, 3, 3), padding=1, strides=(2, 1, 1)),
                ((1, 16, 4, 5, 20),),
            ),
            (lambda x, y: op.matmul(x, y), ((5, 8), (8, 6))),
            (lambda x: op.matmul(x, constant(8)), ((5, 8),)),
            (lambda x: op.matmul(x, constant(3, 8, 6)), ((3, 5, 8),)),
        ],
        ids=[
            "groups of half a block with weights known at run time",
            "a transposed convolution with weights known at run time",
            "channels last",
            "a convolution along three axes",
            "a product of two inputs",
            "a product with a vector",
            "a batch of weights",
        ],
    )
    def test_whole(self, graph: Graph, inputs: Any) -> None:
        mod = partition(graphs.module(graph, *inputs), FusionPlan())
        assert tvm_ffi.structural_equal(layout(mod, MACHINE).module["main"], mod["main"])

    def test_double_precision(self) -> None:
        x = testing.random_array(IMAGE, "float64")
        weight = relax.const(testing.random_array((8, 16, 3, 3), "float64"), "float64")
        assert steps(lambda x: op.nn.conv2d(x, weight), x) == ["conv2d"]

    def test_symbolic_extents(self) -> None:
        height = tirx.Var("height", "int64")
        x = relax.Var("x", relax.TensorType((1, 16, height, 7), "float32"))
        builder = relax.BlockBuilder()
        with builder.function("main", [x]):
            with builder.dataflow():
                y = builder.emit_output(op.nn.conv2d(x, constant(8, 16, 3, 3)))
            builder.emit_func_output(y)
        assert called(laid_out(builder.get())) == ["conv2d"]

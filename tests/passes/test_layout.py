"""Blocks spread from convolutions as far as they can; conversions stand only at the edges."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests import graphs
from tests.kernels.contract import MACHINES
from tvmfuse import testing
from tvmfuse._tvm import relax, tirx, tvm, tvm_ffi
from tvmfuse.passes.layout import layout
from tvmfuse.passes.layout.forms import (
    Blocked,
    ConvWeight,
    DepthwiseWeight,
    Form,
    Panels,
    Plain,
    Trailing,
)
from tvmfuse.passes.partition import partition
from tvmfuse.plan import Candidate, FusionPlan, Group, OpGraph, RunTime

op = relax.op
Graph = Callable[..., Any]

MACHINE = MACHINES["8 lanes"]
IMAGE = (1, 16, 6, 7)


def constant(*shape: int, seed: int = 1) -> Any:
    return relax.const(testing.random_array(shape, "float32", seed=seed))


def conv(
    x: Any, filters: int = 16, kernel: int = 3, *, channels: int = 16, seed: int = 1, **attrs: Any
) -> Any:
    """Convolve with random weights, and leave the extents of the image as they are."""
    weight = constant(filters, channels // attrs.get("groups", 1), kernel, kernel, seed=seed)
    return op.nn.conv2d(x, weight, padding=kernel // 2, **attrs)


def laid_out(mod: Any, plan: FusionPlan | None = None) -> Any:
    """Partition a module, every operator by itself unless planned, and lay it out."""
    return layout(partition(mod, plan or FusionPlan()), MACHINE)


def steps(graph: Graph, *inputs: Any, plan: FusionPlan | None = None) -> list[str]:
    """Return what the laid out function calls, each by its operators."""
    return called(laid_out(graphs.module(graph, *inputs), plan))


def called(mod: Any) -> list[str]:
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                name = value.op.name_hint if hasattr(value.op, "name_hint") else value.op.name
                found.append(_without_numbers(str(name).removeprefix("relax.")))
    return found


def _without_numbers(name: str) -> str:
    return "_".join(part for part in name.split("_") if not part.isdigit())


def assert_same_numbers(graph: Graph, *inputs: Any) -> None:
    """Compare the whole pipeline, fused and not, with TVM's own kernels of plain tensors."""
    mod = graphs.module(graph, *inputs)
    shapes = [tuple(int(d) for d in param.ty.shape) for param in mod["main"].params]
    arrays = [testing.random_array(shape, "float32", seed=i) for i, shape in enumerate(shapes)]
    plain = testing.run(testing.compile_plainly(partition(mod, FusionPlan())), arrays)
    for options in (None, graphs.UNFUSED):
        found = graphs.run(mod, *arrays, target=graphs.on(MACHINE), options=options)
        for mine, expected in zip(found, plain, strict=True):
            testing.assert_close(mine, expected.astype(np.float64))


class TestWhereConversionsStand:
    def test_at_both_ends_of_a_chain_only(self) -> None:
        def graph(x: Any) -> Any:
            return conv(op.nn.relu(conv(x)), 24, seed=2)

        assert steps(graph, IMAGE) == ["to_blocked", "conv2d", "relu", "conv2d", "from_blocked"]
        assert_same_numbers(graph, IMAGE)

    def test_once_for_all_readers_of_blocks(self) -> None:
        def graph(x: Any) -> Any:
            return op.add(conv(x), conv(x, seed=2))

        assert steps(graph, IMAGE) == ["to_blocked", "conv2d", "conv2d", "add", "from_blocked"]

    def test_once_for_all_readers_of_the_plain_form(self) -> None:
        def graph(x: Any) -> Any:
            y = conv(x)
            return [op.permute_dims(y), op.reshape(y, (16, 42)), conv(y, seed=2)]

        found = steps(graph, IMAGE)
        assert found.count("from_blocked") == 2, "one for both readers, one for the last result"
        assert found.count("to_blocked") == 1
        assert_same_numbers(graph, IMAGE)

    def test_after_a_result_of_the_graph_that_is_read_in_blocks_as_well(self) -> None:
        def graph(x: Any) -> Any:
            y = conv(x)
            return [y, conv(op.nn.relu(y), seed=2)]

        assert steps(graph, IMAGE) == [
            "to_blocked",
            "conv2d",
            "relu",
            "conv2d",
            "from_blocked",
            "from_blocked",
        ]
        assert_same_numbers(graph, IMAGE)

    def test_nowhere_in_a_graph_without_convolutions(self) -> None:
        def graph(x: Any) -> Any:
            return op.nn.max_pool2d(op.nn.relu(x), (2, 2))

        assert steps(graph, IMAGE) == ["relu", "max_pool2d"]

    def test_not_before_a_first_layer_of_few_channels(self) -> None:
        def graph(x: Any) -> Any:
            return conv(x, kernel=7, channels=3, strides=2)

        assert steps(graph, (2, 3, 20, 21)) == ["reshape", "conv2d", "from_blocked"]
        assert_same_numbers(graph, (2, 3, 20, 21))


class TestWhatWorksOnBlocks:
    def test_channels_that_fill_no_block(self) -> None:
        def graph(x: Any) -> Any:
            y = op.add(conv(x, 12, channels=9), constant(1, 12, 1, 1))
            return conv(op.nn.gelu(y), 5, channels=12, seed=2)

        assert steps(graph, (1, 9, 5, 5)) == [
            "to_blocked",
            "conv2d",
            "add",
            "gelu",
            "conv2d",
            "from_blocked",
        ]
        assert_same_numbers(graph, (1, 9, 5, 5))

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
        assert found[:3] == ["to_blocked", "conv2d", "mean"]
        assert found.count("to_blocked") == 1
        assert_same_numbers(graph, (2, 8, 5, 5))

    def test_global_pooling_and_the_scaling_of_channels(self) -> None:
        def graph(x: Any) -> Any:
            y = conv(x)
            gate = op.sigmoid(conv(op.nn.adaptive_avg_pool2d(y, 1), kernel=1, seed=2))
            return op.multiply(y, gate)

        found = steps(graph, IMAGE)
        assert (found.count("to_blocked"), found.count("from_blocked")) == (1, 1)
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
            "to_blocked",
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

        assert steps(graph, IMAGE) == ["to_blocked", "conv2d", "relu", "conv2d", "from_blocked"]
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
                "the slopes of a prelu",
                lambda x: op.nn.prelu(conv(x), constant(16)),
                (IMAGE,),
            ),
            ("the root of a block not full", lambda x: op.sqrt(conv(x, 12)), (IMAGE,)),
            ("a softmax", lambda x: op.nn.softmax(conv(x), 1), (IMAGE,)),
            ("a mean over channels", lambda x: op.mean(conv(x), [1]), (IMAGE,)),
            (
                "an operand of higher rank",
                lambda x, y: op.add(conv(x), y),
                (IMAGE, (2, 1, 16, 6, 7)),
            ),
            (
                "parts that are not whole blocks",
                lambda x: op.concat([conv(x, 12), conv(x, 16)], axis=1),
                (IMAGE,),
            ),
            (
                "parts joined along the width",
                lambda x: op.concat([conv(x), conv(x, seed=2)], axis=3),
                (IMAGE,),
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
            (lambda x, w: op.nn.conv2d(x, w), (IMAGE, (8, 16, 3, 3))),
            (lambda x: conv(x, groups=4), (IMAGE,)),
            (
                lambda x: op.nn.conv2d(
                    x, constant(3, 3, 16, 8), data_layout="NHWC", kernel_layout="HWIO"
                ),
                ((1, 6, 7, 16),),
            ),
            (lambda x, y: op.matmul(x, y), ((5, 8), (8, 6))),
            (lambda x: op.matmul(x, constant(8)), ((5, 8),)),
            (lambda x: op.matmul(x, constant(3, 8, 6)), ((3, 5, 8),)),
        ],
        ids=[
            "weights known at run time",
            "groups of half a block",
            "channels last",
            "a product of two inputs",
            "a product with a vector",
            "a batch of weights",
        ],
    )
    def test_whole(self, graph: Graph, inputs: Any) -> None:
        mod = partition(graphs.module(graph, *inputs), FusionPlan())
        assert tvm_ffi.structural_equal(layout(mod, MACHINE)["main"], mod["main"])

    def test_half_precision(self) -> None:
        x = testing.random_array(IMAGE, "float16")
        weight = relax.const(testing.random_array((8, 16, 3, 3), "float16"))
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


class TestGroups:
    def test_a_group_of_two_results_gives_both_in_blocks(self) -> None:
        def graph(x: Any) -> Any:
            y = conv(x)
            return [conv(op.nn.relu(y), seed=2), conv(y, seed=3)]

        mod = graphs.module(graph, IMAGE)
        both = Candidate("test", "conv", "main", (0, 1), OpGraph((), (), (), ()))
        found = laid_out(mod, FusionPlan((Group(both, RunTime(1.0, 2.0)),)))
        assert called(found) == [
            "to_blocked",
            "conv2d_relu",
            "conv2d",
            "conv2d",
            "from_blocked",
            "from_blocked",
        ]
        relax.analysis.well_formed(found)

    def test_a_product_takes_its_packed_weight(self) -> None:
        mod = graphs.module(lambda x: op.matmul(x, constant(8, 40)), (5, 8))
        (call,) = (b.value for b in laid_out(mod)["main"].body.blocks[0].bindings)
        panels, k, columns = (int(d) for d in call.args[1].ty.shape)
        assert k == 8
        assert panels * columns >= 40

    def test_a_weight_that_two_layers_share_is_packed_once(self) -> None:
        weight = constant(16, 16, 3, 3)

        def graph(x: Any) -> Any:
            y = op.nn.conv2d(x, weight, padding=1)
            return op.nn.conv2d(op.nn.relu(y), weight, padding=1)

        bindings = laid_out(graphs.module(graph, IMAGE))["main"].body.blocks[0].bindings
        constants = [
            arg
            for binding in bindings
            for arg in getattr(binding.value, "args", ())
            if isinstance(arg, tvm.ir.GenericConst)
        ]
        assert len(constants) == 2
        assert constants[0].same_as(constants[1])


class TestForms:
    @pytest.mark.parametrize(
        ("form", "shape"),
        [
            (Plain(), (2, 3)),
            (Blocked(8), (2, 20, 3, 5)),
            (Blocked(8), (20, 1, 1)),
            (Blocked(8, rank=3), (2, 20, 5)),
            (Blocked(8, rank=3), (20, 1)),
            (Trailing(), (2, 3, 4, 5)),
            (Trailing(3), (3, 5)),
            (ConvWeight(8, 16), (20, 9, 3, 2)),
            (ConvWeight(1, 8), (20, 3, 3)),
            (DepthwiseWeight(8), (20, 1, 3, 2)),
            (DepthwiseWeight(8), (20, 1, 3)),
            (Panels(16), (7, 33)),
            (Panels(16), (1, 1, 7, 33)),
        ],
    )
    def test_an_arranged_array_has_the_stated_shape_and_the_same_values(
        self, form: Form, shape: tuple[int, ...]
    ) -> None:
        array = testing.random_array(shape, "float32")
        arranged = form.arrange(array)
        assert arranged.shape == form.shape(shape)
        assert arranged.flags.c_contiguous
        assert arranged.dtype == np.float32
        np.testing.assert_array_equal(
            np.sort(arranged[arranged != 0], axis=None), np.sort(array, axis=None)
        )

    def test_blocks_hold_neighbouring_channels(self) -> None:
        array = np.arange(2 * 16 * 3 * 5, dtype="float32").reshape(2, 16, 3, 5)
        blocked = Blocked(8).arrange(array)
        assert blocked[1, 1, 2, 4, 3] == array[1, 8 + 3, 2, 4]

    def test_packed_weights_hold_neighbouring_output_channels(self) -> None:
        array = np.arange(16 * 8 * 3 * 2, dtype="float32").reshape(16, 8, 3, 2)
        packed = ConvWeight(4, 8).arrange(array)
        assert packed[1, 1, 2, 1, 3, 5] == array[8 + 5, 4 + 3, 2, 1]

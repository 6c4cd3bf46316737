"""Conversions stand only at the edges of what works on blocks, at most once for each form."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests import graphs
from tests.passes.layout.steps import (
    IMAGE,
    MACHINE,
    assert_same_numbers,
    called,
    constant,
    conv,
    laid_out,
    op,
    steps,
)
from tvmfuse import testing
from tvmfuse._tvm import relax, tvm
from tvmfuse.passes.layout import layout
from tvmfuse.passes.partition import partition
from tvmfuse.patterns.references import conv2d
from tvmfuse.plan import Candidate, FusionPlan, Group, OpGraph, RunTime


class TestWhereConversionsStand:
    def test_at_both_ends_of_a_chain_only(self) -> None:
        def graph(x: Any) -> Any:
            return conv(op.nn.relu(conv(x)), 24, seed=2)

        assert steps(graph, IMAGE) == ["reshape", "conv2d", "relu", "conv2d", "from_blocked"]
        assert_same_numbers(graph, IMAGE)

    def test_once_for_all_readers_of_blocks(self) -> None:
        def graph(x: Any) -> Any:
            return op.add(conv(x), conv(x, seed=2))

        assert steps(graph, IMAGE) == ["reshape", "conv2d", "conv2d", "add", "from_blocked"]

    def test_once_for_all_readers_of_the_plain_form(self) -> None:
        def graph(x: Any) -> Any:
            y = conv(x)
            return [op.permute_dims(y), op.reshape(y, (16, 42)), conv(y, seed=2)]

        found = steps(graph, IMAGE)
        assert found.count("from_blocked") == 2, "one for both readers, one for the last result"
        assert "to_blocked" not in found, "the second convolution reads the blocks"
        assert_same_numbers(graph, IMAGE)

    def test_after_a_result_of_the_graph_that_is_read_in_blocks_as_well(self) -> None:
        def graph(x: Any) -> Any:
            y = conv(x)
            return [y, conv(op.nn.relu(y), seed=2)]

        assert steps(graph, IMAGE) == [
            "reshape",
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


class TestWhereCopiesWouldCostMost:
    @pytest.mark.parametrize(
        "graph",
        [
            lambda x: conv(x, groups=16),
            lambda x: conv(x, groups=16, strides=2),
            lambda x: conv(x, 24, kernel=1),
            lambda x: conv(op.nn.relu(conv(x, groups=16)), 24, kernel=1, seed=2),
        ],
        ids=["depthwise", "depthwise of a stride", "1 x 1", "one after the other"],
    )
    def test_a_few_convolutions_work_on_planes(self, graph: Any) -> None:
        found = steps(graph, IMAGE)
        assert not {"to_blocked", "from_blocked"} & set(found)
        assert_same_numbers(graph, IMAGE)

    @pytest.mark.parametrize("zero", [0, 3])
    def test_bytes_are_padded_in_their_plane(self, zero: int) -> None:
        weight = relax.const(testing.random_array((16, 1, 3, 3), "int8", seed=1))

        def graph(x: Any) -> Any:
            padded = op.nn.pad(x, (0, 0, 0, 0, 1, 1, 1, 1), pad_value=float(zero))
            return op.nn.conv2d(padded, weight, groups=16, out_dtype="int32")

        x = testing.random_array(IMAGE, "int8", seed=2)
        found = laid_out(graphs.module(graph, x), group_of(0, 1))
        assert called(found) == ["pad_conv2d"]
        assert "nn.pad" not in found.script()
        (result,) = graphs.run(graphs.module(graph, x), x)
        padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)), constant_values=zero)
        exact = conv2d(padded.astype("f8"), weight.value.numpy().astype("f8"), groups=16)
        np.testing.assert_array_equal(result, exact)

    def test_an_island_works_on_planes_and_a_network_on_blocks(self) -> None:
        def graph(x: Any) -> Any:
            island = op.nn.softmax(conv(op.nn.softmax(x, 1), groups=16), 1)
            return conv(op.nn.relu(conv(island, seed=2)), groups=16, seed=3)

        found = steps(graph, IMAGE)
        assert found[:3] == ["softmax", "conv2d", "softmax"]
        assert found[-4:] == ["conv2d", "relu", "conv2d", "from_blocked"]
        assert_same_numbers(graph, IMAGE)

    def test_what_has_no_kernel_for_planes_keeps_its_region_in_blocks(self) -> None:
        def graph(x: Any) -> Any:
            return op.nn.max_pool2d(conv(x, groups=16), (2, 2))

        assert steps(graph, IMAGE) == ["to_blocked", "conv2d", "max_pool2d", "from_blocked"]

    def test_a_weight_known_only_at_run_time_is_multiplied_in_blocks(self) -> None:
        def graph(x: Any, weight: Any) -> Any:
            return op.nn.conv2d(x, weight)

        found = steps(graph, IMAGE, (24, 16, 1, 1))
        assert found[-2:] == ["conv2d", "from_blocked"]
        assert_same_numbers(graph, IMAGE, (24, 16, 1, 1))

    def test_a_group_on_planes_keeps_its_other_operators(self) -> None:
        def graph(x: Any) -> Any:
            return op.nn.relu(op.add(conv(x, groups=16), constant(1, 16, 1, 1)))

        found = laid_out(graphs.module(graph, IMAGE), group_of(0, 1, 2))
        assert called(found) == ["conv2d_add_relu"]
        assert_same_numbers(graph, IMAGE)


def group_of(*bindings: int, family: str = "conv") -> FusionPlan:
    """Return the plan that makes one group of some bindings."""
    candidate = Candidate("test", family, "main", bindings, OpGraph((), (), (), ()))
    return FusionPlan((Group(candidate, RunTime(1.0, 2.0)),))


class TestGroups:
    def test_a_group_of_two_results_gives_both_in_blocks(self) -> None:
        def graph(x: Any) -> Any:
            y = conv(x)
            return [conv(op.nn.relu(y), seed=2), conv(y, seed=3)]

        found = laid_out(graphs.module(graph, IMAGE), group_of(0, 1))
        assert called(found) == [
            "reshape",
            "conv2d_relu",
            "conv2d",
            "conv2d",
            "from_blocked",
            "from_blocked",
        ]
        relax.analysis.well_formed(found)

    def test_a_group_that_cannot_follow_its_convolution_is_dissolved_and_reported(self) -> None:
        def graph(x: Any) -> Any:
            return op.sqrt(op.nn.relu(conv(x, 12)))

        laid = layout(partition(graphs.module(graph, IMAGE), group_of(0, 1, 2)), MACHINE)
        assert called(laid.module) == ["reshape", "conv2d", "relu", "from_blocked", "sqrt"]
        (rejection,) = laid.rejections
        assert (rejection.stage, rejection.bindings) == ("lower", (0, 1, 2))
        assert "sqrt" in rejection.reason

    def test_a_chain_whose_image_has_no_margin_is_dissolved_and_reported(self) -> None:
        def graph(x: Any, y: Any) -> Any:
            added = op.add(conv(x, 12), y)
            return op.nn.max_pool2d(added, (3, 3), strides=(2, 2), padding=(1, 1, 1, 1))

        mod = graphs.module(graph, IMAGE, (IMAGE[0], 12, *IMAGE[2:]))
        laid = layout(partition(mod, group_of(0, 1, 2, family="chained")), MACHINE)
        assert "max_pool2d" in called(laid.module)
        (rejection,) = laid.rejections
        assert "no rows above and below" in rejection.reason

    @pytest.mark.parametrize(
        ("rows", "hidden", "reason"),
        [(23, 16, "no whole tiles of"), (4, 1 << 17, "do not fit the second-level cache")],
    )
    def test_two_products_that_cannot_share_a_kernel_are_dissolved_and_reported(
        self, rows: int, hidden: int, reason: str
    ) -> None:
        def graph(x: Any, y: Any) -> Any:
            return op.matmul(op.add(op.matmul(x, constant(3, hidden)), y), constant(hidden, 2))

        mod = graphs.module(graph, (rows, 3), (rows, hidden))
        laid = layout(partition(mod, group_of(0, 1, 2, family="chained")), MACHINE)
        assert called(laid.module) == ["matmul", "add", "matmul"]
        (rejection,) = laid.rejections
        assert reason in rejection.reason

    def test_a_group_whose_convolution_stays_plain_stays_whole(self) -> None:
        def graph(x: Any, weight: Any) -> Any:
            return op.sqrt(op.nn.relu(op.nn.conv2d(x, weight, groups=4)))

        mod = graphs.module(graph, IMAGE, (8, 4, 3, 3))
        laid = layout(partition(mod, group_of(0, 1, 2)), MACHINE)
        assert called(laid.module) == ["conv2d_relu_sqrt"]
        assert laid.rejections == ()

    def test_a_product_is_packed_whatever_follows_it(self) -> None:
        def graph(x: Any) -> Any:
            return op.cumsum(op.matmul(x, constant(8, 40)), axis=1)

        found = laid_out(graphs.module(graph, (5, 8)), group_of(0, 1))
        assert called(found) == ["matmul_cumsum"]
        (call,) = (b.value for b in found["main"].body.blocks[0].bindings)
        assert len(call.args[1].ty.shape) == 3, "panels"

    def test_a_product_takes_its_packed_weight(self) -> None:
        mod = graphs.module(lambda x: op.matmul(x, constant(8, 40)), (5, 8))
        (call,) = (b.value for b in laid_out(mod)["main"].body.blocks[0].bindings)
        panels, k, columns = (int(d) for d in call.args[1].ty.shape)
        assert k == 8
        assert panels * columns >= 40

    def test_a_weight_that_two_layers_share_is_packed_once(self) -> None:
        weight = constant(16, 16, 3, 3)

        def graph(x: Any) -> Any:
            y = conv(x, seed=2)
            for _ in range(2):
                y = op.nn.conv2d(op.nn.relu(y), weight, padding=1)
            return y

        bindings = laid_out(graphs.module(graph, IMAGE))["main"].body.blocks[0].bindings
        constants = [
            arg
            for binding in bindings
            for arg in getattr(binding.value, "args", ())
            if isinstance(arg, tvm.ir.GenericConst)
        ]
        assert len(constants) == 3
        assert constants[1].same_as(constants[2])

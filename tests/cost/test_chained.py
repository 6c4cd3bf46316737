"""What the roofline expects of two anchors in one kernel."""

import pytest

from tvmfuse.cost import chained, kernel
from tvmfuse.cost.roofline import Roofline
from tvmfuse.plan import Candidate, OpGraph, OpNode, TensorInfo


def f32(*shape, is_constant=False):
    return TensorInfo(shape, "float32", is_constant)


def separable(channels=64, size=28, filters=128):
    """A depthwise convolution with its activation, and the 1 x 1 convolution of that."""
    image = f32(1, channels, size, size)
    tensors = (
        image,
        f32(channels, 1, 3, 3, is_constant=True),
        image,
        image,
        f32(filters, channels, 1, 1, is_constant=True),
        f32(1, filters, size, size),
    )
    ops = (
        OpNode("relax.nn.conv2d", "conv", (0, 1), (2,), 18 * image.size, 0),
        OpNode("relax.nn.relu", "elementwise", (2,), (3,), image.size, 1),
        OpNode("relax.nn.conv2d", "conv", (3, 4), (5,), 2 * filters * image.size, 2),
    )
    return OpGraph(tensors, ops, (0, 1, 4), (5,))


def pooled(channels=64, kernel_size=3, pool=2, stride=2, size=56):
    """A convolution and the pooling of its result."""
    out = size // stride
    image, small = f32(1, channels, size, size), f32(1, channels, out, out)
    weight = f32(channels, channels, kernel_size, kernel_size, is_constant=True)
    flops = 2 * channels * kernel_size**2 * image.size
    ops = (
        OpNode("relax.nn.conv2d", "conv", (0, 1), (2,), flops, 0),
        OpNode("relax.nn.max_pool2d", "pooling", (2,), (3,), pool**2 * small.size, 1),
    )
    return OpGraph((image, weight, image, small), ops, (0, 1), (3,))


def candidate(graph, family="chained"):
    return Candidate("chain", family, "main", tuple(range(len(graph.ops))), graph)


def test_stages_part_before_the_second_anchor():
    first, second = chained.stages(separable())
    assert [op.name for op in first.ops] == ["relax.nn.conv2d", "relax.nn.relu"]
    assert [op.name for op in second.ops] == ["relax.nn.conv2d"]
    assert [first.tensors[i].shape for i in first.outputs] == [(1, 64, 28, 28)]
    assert [second.tensors[i].shape for i in second.inputs] == [(1, 64, 28, 28), (128, 64, 1, 1)]


def test_chain_starts_once_and_fetches_nothing_between(peaks):
    graph = separable()
    first, second = chained.together(graph)
    assert (first.launches, second.launches) == (1, 0)
    assert second.activation_bytes == 0
    time = Roofline(peaks).predict(candidate(graph))
    apart = [kernel.together(stage)[0] for stage in chained.stages(graph)]
    assert time.fused_us < sum(map(Roofline(peaks).kernel_us, apart))


def test_rows_that_two_windows_share_are_computed_twice():
    apart, overlapping = pooled(kernel_size=5, pool=2), pooled(kernel_size=5, pool=3)
    assert chained.together(apart)[0].flops == {"conv": apart.ops[0].flops}
    assert chained.together(overlapping)[0].total_flops > overlapping.ops[0].flops


def test_chain_is_not_expected_to_pay_where_winograd_halves_the_convolution(peaks):
    time = Roofline(peaks).predict(candidate(pooled(kernel_size=3)))
    assert time.saved_us < 0


def test_chain_pays_where_what_lies_between_is_much_beside_the_work(peaks):
    prior = Roofline(peaks)
    assert prior.predict(candidate(pooled(channels=8, kernel_size=1, size=224))).saved_us > 0
    assert prior.predict(candidate(pooled(channels=64, kernel_size=5))).saved_us < 0


def perceptron(rows, k=256, hidden=1024, n=256):
    """A product with its activation, and the product of that."""
    wide = f32(rows, hidden)
    tensors = (
        f32(rows, k),
        f32(k, hidden, is_constant=True),
        wide,
        wide,
        f32(hidden, n, is_constant=True),
        f32(rows, n),
    )
    ops = (
        OpNode("relax.matmul", "matmul", (0, 1), (2,), 2 * rows * k * hidden, 0),
        OpNode("relax.nn.relu", "elementwise", (2,), (3,), rows * hidden, 1),
        OpNode("relax.matmul", "matmul", (3, 4), (5,), 2 * rows * hidden * n, 2),
    )
    return OpGraph(tensors, ops, (0, 1, 4), (5,))


def test_two_products_are_not_expected_to_pay_for_so_few_rows_that_a_core_is_idle(peaks):
    roofline = Roofline(peaks)
    assert peaks.cores > 1
    assert roofline.predict(candidate(perceptron(4))).saved_us < 0
    assert roofline.predict(candidate(perceptron(64, 64, 256, 64))).saved_us > 0


@pytest.mark.parametrize("rows", [64, 512, 4096])
def test_two_products_are_not_expected_to_pay_whose_weights_leave_the_cache(peaks, rows):
    small, large = perceptron(rows, 128, 512, 128), perceptron(rows, 512, 2048, 512)
    assert Roofline(peaks).predict(candidate(small)).saved_us > 0
    assert Roofline(peaks).predict(candidate(large)).saved_us < 0

"""Group normalisation, however exported, is one operator with all its parameters."""

import pytest

from tests.passes.canonical import assert_same_numbers, built, constant
from tvmfuse.patterns.base import Operand

X = Operand((2, 6, 4, 5))
GAIN = constant(6, 1, 1)
ONES = {"num_groups": 3, "channel_axis": 1, "axes": [2], "epsilon": 1e-5}


def neutral(op, groups):
    """Return ones and zeros."""
    return (op.full((groups,), op.const(value), dtype="float32") for value in (1.0, 0.0))


def by_instance_norm(op, x):
    return op.nn.group_norm(x, *neutral(op, 3), **ONES)


def by_layer_norm(op, x):
    rows = int(x.ty.shape[2])
    return op.nn.layer_norm(x, *neutral(op, rows), axes=[-1], epsilon=1e-5)


def by_arithmetic(op, x):
    centred = op.subtract(x, op.mean(x, axis=[2], keepdims=True))
    variance = op.mean(op.multiply(centred, centred), axis=[2], keepdims=True)
    return op.divide(centred, op.sqrt(op.add(variance, op.const(1e-5))))


@pytest.mark.parametrize("norm", [by_instance_norm, by_layer_norm, by_arithmetic])
def test_norm_of_a_view_with_gain_and_offset_is_a_group_norm(norm):
    def graph(op, x, gain, offset):
        normal = op.reshape(norm(op, op.reshape(x, (2, 3, 40))), (2, 6, 4, 5))
        return op.add(op.multiply(normal, gain), offset)

    mod, values = built(graph, x=X, gain=GAIN, offset=GAIN)
    assert assert_same_numbers(mod, values) == {"nn.group_norm": 1}


def test_operator_of_opset_21_takes_its_parameters_back():
    def graph(op, x, gain, offset):
        options = {**ONES, "axes": [2, 3], "center": False, "scale": False}
        normal = op.nn.group_norm(x, *neutral(op, 6), **options)
        return op.add(op.multiply(normal, gain), offset)

    mod, values = built(graph, x=X, gain=GAIN, offset=GAIN)
    assert assert_same_numbers(mod, values) == {"nn.group_norm": 1}


@pytest.mark.parametrize(
    ("view", "gain"),
    [
        ((2, 4, 30), GAIN),  # 6 channels are no 4 groups
        ((1, 6, 40), GAIN),  # the batch is parted
        ((2, 3, 40), constant(4, 5)),  # the gain varies along the image
    ],
)
def test_what_is_no_group_norm_stays(view, gain):
    def graph(op, x, gain):
        normal = by_arithmetic(op, op.reshape(x, view))
        return op.multiply(op.reshape(normal, (2, 6, 4, 5)), gain)

    mod, values = built(graph, x=X, gain=gain)
    left = assert_same_numbers(mod, values)
    assert left != {"nn.group_norm": 1}


def test_normalised_view_that_is_read_elsewhere_stays():
    def graph(op, x):
        view = by_arithmetic(op, op.reshape(x, (2, 3, 40)))
        return op.reshape(view, (2, 6, 4, 5)), op.exp(view)

    mod, values = built(graph, x=X)
    assert "nn.group_norm" not in assert_same_numbers(mod, values)

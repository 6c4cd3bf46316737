"""A sum of logarithms times a one-hot label picks one of them."""

import pytest

from tests.passes.canonical import assert_same_numbers, built
from tvmfuse._tvm import tirx
from tvmfuse.patterns.base import Operand

X = Operand((5, 7))
LABELS = Operand((5,), dtype="int64", bounds=(-2, 9))  # some of them are no class


def picked(op, x, labels, *, softmax=1, axis=1, encoded=-1, on=1.0, keep=False):
    logarithms = op.nn.log_softmax(x, axis=softmax)
    one_hot = op.one_hot(
        labels, *(tirx.const(v, "float32") for v in (on, 0.0)), depth=7, axis=encoded
    )
    return op.sum(op.multiply(logarithms, one_hot), axis=[axis], keepdims=keep)


@pytest.mark.parametrize("keep", [False, True])
def test_one_hot_becomes_a_gather(keep):
    mod, values = built(lambda op, x, t: picked(op, x, t, keep=keep), x=X, t=LABELS)
    left = assert_same_numbers(mod, values)
    assert left["gather_elements"] == 1
    assert left["sum"] == left["one_hot"] == 0


@pytest.mark.parametrize("changed", [{"softmax": 0}, {"axis": 0}, {"on": 2.0}])
def test_other_sums_stay(changed):
    mod, values = built(lambda op, x, t: picked(op, x, t, **changed), x=X, t=LABELS)
    assert assert_same_numbers(mod, values)["gather_elements"] == 0

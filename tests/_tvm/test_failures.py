from __future__ import annotations

import pytest

from tvmfuse._tvm import relax
from tvmfuse._tvm.failures import FAILURES, reason


def test_operator_is_called_by_its_name():
    left = relax.Var("left", relax.TensorType([3], "float32"))
    right = relax.Var("right", relax.TensorType([4], "float32"))
    with pytest.raises(FAILURES) as caught:
        relax.BlockBuilder().normalize(relax.op.add(left, right))
    assert reason(caught.value).startswith("In relax.add, the first input shape at dim 0 is")


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (KeyError("b"), "KeyError 'b'"),
        (ValueError(""), "ValueError"),
        (ValueError("two\n  lines.\n"), "two lines"),
    ],
    ids=["key", "nothing", "lines"],
)
def test_reason_is_one_line(error, text):
    assert reason(error) == text


def test_reason_has_a_bearable_length():
    assert len(reason(ValueError("x" * 5000))) == 300

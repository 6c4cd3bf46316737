from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvmfuse.errors import InputError
from tvmfuse.runtime.comparison import Difference, compare

NAN, INF = float("nan"), float("inf")


def one(a: Any, b: Any, *, rtol: float = 1e-3, dtype: str = "float32") -> Difference:
    (found,) = compare({"y": np.array(a, dtype)}, {"y": np.array(b, dtype)}, rtol=rtol)
    return found


def test_the_error_is_relative_to_the_largest_reference() -> None:
    assert one([1.0, 99.0], [2.0, 100.0]).error == pytest.approx(0.01)
    assert one([0.5], [0.0]).error == 0.5  # nothing to be relative to


@pytest.mark.parametrize(
    ("a", "b", "is_close"),
    [
        ([1.0, NAN], [1.0, NAN], True),
        ([NAN, 1.0], [1.0, NAN], False),
        ([1.0, 1.0], [1.0, NAN], False),
        ([1.0, NAN], [1.0, 1.0], False),
        ([INF, 1.0], [INF, 1.0], True),
        ([INF, 1.0], [-INF, 1.0], False),
        ([INF, 1.0], [3e38, 1.0], False),
        ([NAN, NAN], [NAN, NAN], True),
        ([], [], True),
        ([1.0009], [1.0], True),
        ([1.0011], [1.0], False),
    ],
)
def test_what_passes(a: list[float], b: list[float], is_close: bool) -> None:  # noqa: FBT001
    assert one(a, b).is_close is is_close


def test_another_shape_or_dtype_fails_whatever_the_values() -> None:
    found = compare({"y": np.zeros((1, 2))}, {"y": np.zeros(2)}, rtol=INF)[0]
    assert not found.is_close
    assert found.note == "float64 [1, 2] instead of float64 [2]"
    found = compare({"y": np.zeros(2, "int32")}, {"y": np.zeros(2, "int64")}, rtol=INF)[0]
    assert found.note == "int32 [2] instead of int64 [2]"


def test_integers_and_truth_values_are_compared_as_numbers() -> None:
    assert one([True, False], [True, True], dtype="bool").error == 1.0
    assert one([0], [255], dtype="uint8").error == 1.0  # no wrap-around
    assert one([2**40], [2**40], dtype="int64").is_close


def test_outputs_are_matched_by_name() -> None:
    a, b = np.zeros(1), np.ones(1)
    found = compare({"p": a, "q": b}, {"q": b, "p": a}, rtol=0.0)
    assert [(each.name, each.is_close) for each in found] == [("q", True), ("p", True)]
    with pytest.raises(InputError, match="both sides need the same outputs, but got p and q"):
        compare({"p": a}, {"q": b}, rtol=0.0)

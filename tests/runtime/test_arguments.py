from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tvmfuse.errors import InputError
from tvmfuse.frontend import TensorSpec
from tvmfuse.runtime.arguments import fit_inputs, fit_targets, name_arguments

SPECS = (TensorSpec("x:0", (2, 3), "float32"), TensorSpec("ids", (4,), "int64"))
X = np.zeros((2, 3), "float32")
IDS = np.zeros(4, "int64")


class Unreadable:
    """A tensor on a device that NumPy cannot reach."""

    def __dlpack__(self, **_: Any) -> Any:
        raise BufferError("it lives on a GPU")

    def __dlpack_device__(self) -> tuple[int, int]:
        return (2, 0)


BAD_VALUES: dict[str, tuple[Any, str]] = {
    "float64": (X.astype("float64"), r"must be float32 \[2, 3\], but got float64 \[2, 3\]"),
    "float16": (X.astype("float16"), r"but got float16 \[2, 3\]"),
    "int32": (X.astype("int32"), r"but got int32 \[2, 3\]"),
    "bool": (X.astype("bool"), r"but got bool \[2, 3\]"),
    "big-endian": (X.astype(">f4"), r"but got >f4 \[2, 3\]"),
    "complex": (X.astype("complex64"), r"but got complex64"),
    "strings": (np.array([["a"] * 3] * 2), r"but got <U1 \[2, 3\]"),
    "objects": (np.array([[None] * 3] * 2), r"but got object \[2, 3\]"),
    "one column too few": (X[:, :2], r"but got float32 \[2, 2\]"),
    "one row too many": (np.zeros((3, 3), "float32"), r"but got float32 \[3, 3\]"),
    "transposed": (X.T, r"but got float32 \[3, 2\]"),
    "rank 1": (X.reshape(6), r"but got float32 \[6\]"),
    "rank 3": (X[None], r"but got float32 \[1, 2, 3\]"),
    "rank 0": (np.float32(1), r"but got float32 \[\]"),
    "no rows": (X[:0], r"but got float32 \[0, 3\]"),
    "None": (None, "must be a NumPy array or a DLPack tensor on the host, .* but got NoneType"),
    "a list": ([[0.0] * 3] * 2, "but got list"),
    "a number": (1.0, "but got float"),
    "text": ("x", "but got str"),
    "on a GPU": (
        Unreadable(),
        r"but got Unreadable, which NumPy cannot read \(it lives on a GPU\)",
    ),
}


@pytest.mark.parametrize("case", BAD_VALUES)
def test_a_value_that_does_not_fit_names_the_input_what_is_required_and_what_was_found(
    case: str,
) -> None:
    value, message = BAD_VALUES[case]
    with pytest.raises(InputError, match=message) as caught:
        fit_inputs(SPECS, {"x:0": value, "ids": IDS})
    assert "input 'x:0'" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_missing_input_is_named() -> None:
    with pytest.raises(InputError, match=r"input 'ids', int64 \[4\], is missing"):
        fit_inputs(SPECS, {"x:0": X})


def test_an_unknown_input_is_named_with_the_known_ones() -> None:
    with pytest.raises(InputError, match="no input 'y'; the inputs are x:0, ids"):
        fit_inputs(SPECS, {"x:0": X, "ids": IDS, "y": X})


def test_inputs_come_back_in_the_order_of_the_model() -> None:
    first, second = fit_inputs(SPECS, {"ids": IDS, "x:0": X})
    assert (first.dtype, second.dtype) == (X.dtype, IDS.dtype)


def test_a_read_only_array_will_do() -> None:
    frozen = X.copy()
    frozen.flags.writeable = False
    assert fit_inputs(SPECS[:1], {"x:0": frozen})[0].shape == (2, 3)


def test_positions_and_names_are_joined() -> None:
    assert name_arguments(SPECS, (X,), {"ids": IDS}).keys() == {"x:0", "ids"}


def test_one_mapping_stands_for_all_inputs() -> None:
    feeds = {"x:0": X, "ids": IDS}
    assert name_arguments(SPECS, (feeds,), {}) is feeds


def test_too_many_arguments_are_counted() -> None:
    with pytest.raises(InputError, match=r"required are 2 inputs \(x:0, ids\), but got 3"):
        name_arguments(SPECS, (X, IDS, X), {})


def test_an_input_given_twice_is_refused() -> None:
    with pytest.raises(InputError, match="'ids' is given twice"):
        name_arguments(SPECS, (X, IDS), {"ids": IDS})


DYNAMIC = (TensorSpec("a", ("n", 3), "float32"), TensorSpec("b", ("n",), "float32"))


def test_an_extent_with_a_name_takes_any_size() -> None:
    for n in (0, 1, 7):
        a, b = np.zeros((n, 3), "float32"), np.zeros(n, "float32")
        assert len(fit_inputs(DYNAMIC, {"a": a, "b": b})) == 2


def test_an_extent_with_a_name_has_one_size_in_all_inputs() -> None:
    a, b = np.zeros((2, 3), "float32"), np.zeros(4, "float32")
    with pytest.raises(InputError, match=r"'b' must be float32 \[n\] with n = 2, .* \[4\]"):
        fit_inputs(DYNAMIC, {"a": a, "b": b})


def test_the_fixed_extents_of_a_dynamic_input_are_checked() -> None:
    with pytest.raises(InputError, match=r"'a' must be float32 \[n, 3\], but got float32 \[2, 4\]"):
        fit_inputs(DYNAMIC, {"a": np.zeros((2, 4), "float32"), "b": np.zeros(2, "float32")})


@pytest.mark.parametrize(
    "target",
    [X.astype("float64"), X[:1], [[0.0] * 3] * 2, np.broadcast_to(np.float32(0), (2, 3))],
    ids=["float64", "a row short", "a list", "read-only"],
)
def test_a_target_that_does_not_fit_is_refused(target: Any) -> None:
    with pytest.raises(InputError, match=r"out\['x:0'\] must be a writable NumPy array"):
        fit_targets(SPECS, {"x:0": target})


def test_a_target_for_an_unknown_output_is_refused() -> None:
    with pytest.raises(InputError, match="no output 'z'; the outputs are x:0, ids"):
        fit_targets(SPECS, {"z": X})

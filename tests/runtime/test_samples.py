from __future__ import annotations

import numpy as np
import pytest

from tvmfuse.frontend import TensorSpec
from tvmfuse.runtime.samples import random_inputs


def one(name: str, shape: tuple[int | str, ...], dtype: str) -> np.ndarray:
    return random_inputs([TensorSpec(name, shape, dtype)])[name]


@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3, 4)], ids=str)
@pytest.mark.parametrize(
    "dtype", ["float32", "float16", "float64", "int64", "int32", "int8", "uint8", "bool"]
)
def test_inputs_have_the_shape_and_dtype_asked_for(shape: tuple[int, ...], dtype: str) -> None:
    for name in ("x", "attention_mask", "token_type_ids", "position_ids"):
        found = one(name, shape, dtype)
        assert (found.shape, found.dtype) == (shape, np.dtype(dtype))


def test_the_same_seed_gives_the_same_inputs_and_another_one_others() -> None:
    specs = [TensorSpec("a", (8,), "float32"), TensorSpec("b", (8,), "float32")]
    first, again = random_inputs(specs), random_inputs(specs)
    np.testing.assert_array_equal(first["a"], again["a"])
    assert not np.array_equal(first["a"], first["b"])
    assert not np.array_equal(first["a"], random_inputs(specs, seed=1)["a"])


def test_an_input_keeps_its_values_when_another_is_added() -> None:
    a, b = TensorSpec("a", (8,), "float32"), TensorSpec("b", (8,), "float32")
    np.testing.assert_array_equal(random_inputs([a])["a"], random_inputs([b, a])["a"])


def test_integers_are_small_indices() -> None:
    ids = one("input_ids", (1000,), "int64")
    assert ids.min() >= 0
    assert ids.max() < 100
    assert len(np.unique(ids)) > 50


def test_masks_types_and_positions_are_what_their_names_say() -> None:
    assert (one("attention_mask", (2, 9), "int64") == 1).all()
    assert set(one("token_type_ids", (1, 99), "int64").ravel()) == {0, 1}
    np.testing.assert_array_equal(one("position_ids", (2, 3), "int64"), [[0, 1, 2]] * 2)


def test_pictures_in_bytes_use_the_full_range() -> None:
    assert set(np.ptp(one("image", (4000,), "uint8")).ravel()) == {255}


def test_an_extent_with_a_name_becomes_one() -> None:
    assert one("x", ("batch", 3), "float32").shape == (1, 3)


def test_made_up_arrays_can_be_read_where_they_lie() -> None:
    specs = [
        TensorSpec(f"x{i}", (1000 + i, 33), dtype) for i, dtype in enumerate(("float32", "int8"))
    ]
    for array in random_inputs(specs).values():
        assert array.ctypes.data % 64 == 0

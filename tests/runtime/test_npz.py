from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tvmfuse.errors import InputError
from tvmfuse.runtime import npz

ARRAYS = {
    "file": np.ones(2, "float16"),
    "x:0": np.array(3),
    "a/b.c": np.zeros((0, 2), "bool"),
    "../up": np.arange(6, dtype="uint8").reshape(2, 3).T,
    "allow_pickle": np.zeros(1, "int64"),
    "ü.npy": np.zeros(1),
}


def test_arrays_of_any_name_come_back_in_order(tmp_path: Path) -> None:
    npz.write(ARRAYS, tmp_path / "arrays.npz")
    found = npz.read(tmp_path / "arrays.npz")
    assert list(found) == list(ARRAYS)
    for name, array in ARRAYS.items():
        assert found[name].dtype == array.dtype
        np.testing.assert_array_equal(found[name], array)


def test_what_numpy_wrote_is_read(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "arrays.npz", x=np.ones(3))
    np.testing.assert_array_equal(npz.read(tmp_path / "arrays.npz")["x"], np.ones(3))


@pytest.mark.parametrize("case", ["missing", "a folder", "text", "empty", "cut", "npy", "objects"])
def test_a_file_that_holds_no_arrays_is_refused_in_one_line(tmp_path: Path, case: str) -> None:
    path = tmp_path / "arrays.npz"
    npz.write(ARRAYS, path)
    whole = path.read_bytes()
    path.unlink()
    match case:
        case "a folder":
            path.mkdir()
        case "text":
            path.write_text("hello")
        case "empty":
            path.touch()
        case "cut":
            path.write_bytes(whole[: len(whole) // 2])
        case "npy":
            with path.open("wb") as file:
                np.save(file, np.ones(3))
        case "objects":
            np.savez(path, x=np.array([{}], dtype=object))
    with pytest.raises(InputError, match=r"arrays\.npz is required to be an \.npz file") as caught:
        npz.read(path)
    assert "\n" not in str(caught.value)
    assert "pickle" not in str(caught.value)
    assert "write it with numpy.savez" in str(caught.value)

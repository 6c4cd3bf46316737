from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tvmfuse import bundle
from tvmfuse.errors import BundleError, EnvironmentMismatchError

if TYPE_CHECKING:
    from tvmfuse.compiled import Compiled


def test_what_is_saved_is_read_back(compiled: Compiled, folder: Path) -> None:
    found = bundle.read(folder)
    assert found.signature == compiled.signature
    assert found.plan() == compiled.plan
    assert found.kernels() == compiled.kernels
    assert found.target == "cpu"
    assert found.manifest["model"] == "affine"
    for written, read in zip(compiled.params.values(), found.params(), strict=True):
        assert written.shape == read.shape  # a 0-d array stays one
        assert written.dtype == read.dtype
        np.testing.assert_array_equal(written, read)


def test_weights_come_back_in_order_whatever_their_names_and_layouts(
    compiled: Compiled, tmp_path: Path
) -> None:
    params = {
        "z/ü:0": np.arange(6, dtype="int64").reshape(2, 3).T,
        "a": np.zeros((0, 3), "float16"),
        "m": np.array([True, False]),
        "": np.ones((1, 1), "uint8"),
    }
    saved = bundle.save(replace(compiled, params=params), tmp_path / "odd.tvmfuse")
    for written, read in zip(params.values(), bundle.read(saved.path).params(), strict=True):
        assert (written.shape, written.dtype) == (read.shape, read.dtype)
        np.testing.assert_array_equal(written, read)


def test_a_bundle_loads_from_a_path_with_spaces_and_accents(
    compiled: Compiled, tmp_path: Path
) -> None:
    path = tmp_path / "a b é 'q' $x.tvmfuse"
    bundle.save(compiled, path)
    assert bundle.read(path).manifest["model"] == "affine"


def test_whoever_may_read_one_file_may_read_all(folder: Path) -> None:
    readable = {bool(path.stat().st_mode & 0o004) for path in folder.iterdir()}
    assert len(readable) == 1


def test_an_older_bundle_is_replaced_and_nothing_else_is_left(
    compiled: Compiled, folder: Path
) -> None:
    bundle.save(replace(compiled, model_name="newer"), folder)
    assert bundle.read(folder).manifest["model"] == "newer"
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def test_an_empty_folder_is_taken(compiled: Compiled, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    bundle.save(compiled, tmp_path / "empty")
    assert bundle.read(tmp_path / "empty").target == "cpu"


def test_a_folder_that_is_no_bundle_is_not_overwritten(compiled: Compiled, tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter1.tex").write_text("dear to somebody")
    with pytest.raises(BundleError, match="is not a tvmfuse bundle, so it is not overwritten"):
        bundle.save(compiled, tmp_path / "thesis")
    assert (tmp_path / "thesis" / "chapter1.tex").exists()


def test_a_file_is_not_overwritten(compiled: Compiled, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("dear to somebody")
    with pytest.raises(BundleError, match="not overwritten"):
        bundle.save(compiled, tmp_path / "notes")


def test_a_missing_parent_folder_is_named(compiled: Compiled, tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="no such place is not a folder; create it"):
        bundle.save(compiled, tmp_path / "no such place" / "m.tvmfuse")


def test_a_place_that_takes_no_folder_is_one_line(compiled: Compiled) -> None:
    with pytest.raises(BundleError, match="bundle: ") as caught:
        bundle.save(compiled, "/proc/m.tvmfuse")
    assert "\n" not in str(caught.value)


def test_a_machine_without_a_compiler_is_told_what_to_do(
    compiled: Compiled, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(EnvironmentMismatchError, match="install one, or set CXX"):
        bundle.save(compiled, tmp_path / "m.tvmfuse")
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("moment", ["write", "manifest", "rename"])
def test_a_failure_while_writing_leaves_the_old_bundle(
    compiled: Compiled, folder: Path, monkeypatch: pytest.MonkeyPatch, moment: str
) -> None:
    before = {path.name: path.read_bytes() for path in folder.iterdir()}

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError(28, "No space left on device")

    rename = Path.rename
    failing = {
        "write": ("safetensors.numpy.save_file", fail),
        "manifest": ("tvmfuse.bundle.manifest.write", fail),
        # The new bundle cannot take its place, after the old one has made room.
        "rename": (
            "pathlib.Path.rename",
            lambda self, to: fail() if to == folder and _is_new(self) else rename(self, to),
        ),
    }
    with monkeypatch.context() as patch:
        patch.setattr(*failing[moment])
        with pytest.raises(BundleError, match="No space left on device"):
            bundle.save(replace(compiled, model_name="newer"), folder)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before
    assert [path.name for path in folder.parent.iterdir()] == [folder.name]


def _is_new(path: Path) -> bool:
    return '"newer"' in (path / "manifest.json").read_text()


_KILLED = """
import os, signal, sys
from pathlib import Path
from tvmfuse.bundle import directory

def rename(self, to, rename=Path.rename):
    rename(self, to)
    os.kill(os.getpid(), signal.SIGKILL)
staging = Path(sys.argv[1]); target = Path(sys.argv[2])
Path.rename = rename
directory._replace(staging, target)
"""


def test_a_kill_between_the_two_renames_leaves_no_half_bundle(folder: Path) -> None:
    staging = folder.with_name("staging")
    staging.mkdir()
    (staging / "manifest.json").write_text("{}")
    killed = subprocess.run(
        [sys.executable, "-c", _KILLED, str(staging), str(folder)], check=False, timeout=120
    )
    assert killed.returncode == -signal.SIGKILL
    assert not folder.exists()


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_folder_is_named(compiled: Compiled, tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BundleError, match="is read-only; choose another output"):
        bundle.save(compiled, tmp_path / "m.tvmfuse")

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tvmfuse import bundle
from tvmfuse.bundle import manifest
from tvmfuse.errors import BundleError, EnvironmentMismatchError

FILES = ("lib.so", "params.safetensors", "plan.json", "kernels.json", "manifest.json")


def _flip(path: Path, position: float, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[int(position * (len(data) - 1))] ^= 1 << bit
    path.write_bytes(data)


def _truncate(path: Path, share: float) -> None:
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * share)])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "first bit flipped": lambda path: _flip(path, 0.0, 0),
    "middle bit flipped": lambda path: _flip(path, 0.5, 6),
    "last bit flipped": lambda path: _flip(path, 0.99, 3),
    "emptied": lambda path: _truncate(path, 0.0),
    "cut in half": lambda path: _truncate(path, 0.5),
    "one byte short": lambda path: path.write_bytes(path.read_bytes()[:-2]),
    "one byte long": lambda path: path.write_bytes(path.read_bytes() + b"}"),
    "missing": lambda path: path.unlink(),
    "a text file": lambda path: path.write_text("hello\n"),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "another file of the bundle": lambda path: shutil.copy(
        path.with_name("plan.json" if path.name != "plan.json" else "kernels.json"), path
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("file", FILES)
def test_every_damage_to_every_file_is_refused(folder: Path, file: str, damage: str) -> None:
    DAMAGES[damage](folder / file)
    with pytest.raises(BundleError) as caught:
        bundle.read(folder)
    assert str(folder) in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("bit", range(8))
def test_no_bit_of_the_manifest_can_change_unseen(folder: Path, bit: int) -> None:
    path = folder / "manifest.json"
    before = path.read_bytes()
    for position in range(bit, len(before), 8):
        data = bytearray(before)
        data[position] ^= 1 << bit
        path.write_bytes(data)
        if _says_the_same(before, data):
            continue
        with pytest.raises((BundleError, EnvironmentMismatchError)):
            bundle.read(folder)


def _says_the_same(before: bytes, after: bytes) -> bool:
    try:
        return bool(json.loads(before) == json.loads(after))
    except ValueError:
        return False


def _reseal(folder: Path, change: Callable[[dict[str, Any]], object]) -> None:
    path = folder / "manifest.json"
    content = json.loads(path.read_text())
    change(content)
    path.write_text(json.dumps(manifest._sealed(content)))


def test_a_bundle_of_another_tvm_is_refused_with_both_versions(folder: Path) -> None:
    _reseal(folder, lambda content: content["versions"].update(tvm="0.26.0"))
    with pytest.raises(
        EnvironmentMismatchError, match=r"made with apache-tvm 0\.26\.0 .* 0\.27\.0"
    ):
        bundle.read(folder)


def test_a_bundle_of_another_ffi_series_is_refused(folder: Path) -> None:
    _reseal(folder, lambda content: content["versions"].update(tvm_ffi="0.1.15.post2"))
    with pytest.raises(EnvironmentMismatchError, match=r"apache-tvm-ffi 0\.1\.15\.post2"):
        bundle.read(folder)


def test_a_bundle_of_another_tvmfuse_is_read(folder: Path) -> None:
    _reseal(folder, lambda content: content["versions"].update(tvmfuse="0.0.1"))
    assert bundle.read(folder).manifest["versions"]["tvmfuse"] == "0.0.1"


def test_a_bundle_for_a_richer_processor_names_the_feature(folder: Path) -> None:
    # "xop" left AMD's processors in 2017, "sve2p1" is Arm's: nothing has both.
    _reseal(folder, lambda content: content["target"]["instructions"].extend(["xop", "sve2p1"]))
    with pytest.raises(BundleError, match=r"needs a processor with .*(xop|sve2p1)"):
        bundle.read(folder)


def test_a_bundle_for_another_system_names_both(folder: Path) -> None:
    _reseal(folder, lambda content: content["target"].update(triple="riscv64-unknown-linux-gnu"))
    with pytest.raises(BundleError, match="made for riscv64-unknown-linux-gnu, but this machine"):
        bundle.read(folder)


def test_a_newer_schema_is_refused(folder: Path) -> None:
    _reseal(folder, lambda content: content.update(schema=99))
    with pytest.raises(BundleError, match="has schema 99, but this tvmfuse reads schema 1"):
        bundle.read(folder)


@pytest.mark.parametrize("content", ["", "[]", "{}", "null", '{"format": "zip"}', "\x00\xff"])
def test_a_folder_without_a_manifest_of_ours_is_no_bundle(tmp_path: Path, content: str) -> None:
    (tmp_path / "manifest.json").write_text(content)
    with pytest.raises(BundleError, match="is not a tvmfuse bundle"):
        bundle.read(tmp_path)


def test_a_missing_folder_is_no_bundle(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="is not a tvmfuse bundle: no such folder"):
        bundle.read(tmp_path / "nowhere")

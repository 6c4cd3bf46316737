"""What is written appears whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tvmfuse.errors import InputError
from tvmfuse.files import check_destination, whole_file, write_text


def test_a_file_is_there_once_it_is_whole_and_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "all.txt"
    with whole_file(path) as part:
        part.write_text("half")
        assert not path.exists()
    assert path.read_text() == "half"
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("error", [KeyboardInterrupt, InputError, OSError])
def test_what_is_interrupted_leaves_what_was_there(
    tmp_path: Path, error: type[BaseException]
) -> None:
    path = tmp_path / "all.txt"
    path.write_text("old")

    def write_half() -> None:
        with whole_file(path) as part:
            part.write_text("half")
            raise error

    with pytest.raises((error, InputError)):
        write_half()
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path: Path) -> None:
    path, link = tmp_path / "file.txt", tmp_path / "link.txt"
    path.write_text("old")
    link.symlink_to(path)
    write_text(link, "new")
    assert link.is_symlink()
    assert path.read_text() == "new"


def test_what_is_no_plain_file_is_written_to_directly() -> None:
    write_text(Path("/dev/null"), "gone")
    assert not Path("/dev/null").is_file()


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("missing/all.txt", "there is no folder .*missing; create it"),
        ("file/all.txt", "there is no folder"),
        ("folder", "it is a folder; choose another name"),
    ],
)
def test_where_nothing_can_be_written_is_said_at_once(tmp_path: Path, name: str, said: str) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=said):
        check_destination(tmp_path / name)
    with pytest.raises(InputError, match=said):
        write_text(tmp_path / name, "")


def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)
    with pytest.raises(InputError, match=r"a.txt cannot be written: .* is read-only"):
        check_destination(tmp_path / "a.txt")

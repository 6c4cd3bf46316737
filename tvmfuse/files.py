"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tvmfuse.errors import InputError


def check_destination(path: Path) -> None:
    """Refuse a place where no file can be written, before the long work.

    Raises
    ------
    InputError
        Its folder is missing or cannot be written to, or it is a folder itself.
    """
    if path.is_dir():
        raise InputError(f"{path} cannot be written: it is a folder; choose another name")
    if not path.parent.is_dir():
        raise InputError(
            f"{path} cannot be written: there is no folder {path.parent}; create it, or choose "
            "another name"
        )
    place = path if _is_special(path) else path.parent
    if not os.access(place, os.W_OK):
        raise InputError(f"{path} cannot be written: {place} is read-only; choose another place")


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield a name beside ``path`` to write to, which replaces it when the block ends well.

    Until then a file of that name stays as it was, whatever happens. Only what is no plain
    file, such as ``/dev/stdout`` or a pipe, is written to directly.

    Raises
    ------
    InputError
        As :func:`check_destination`; or the disk is full.
    """
    check_destination(path)
    if _is_special(path):
        yield path
        return
    target = path.resolve()  # of a link, the file that it names
    part = target.with_name(f".{target.name}.{secrets.token_hex(4)}")
    try:
        yield part
        _sync(part)
        part.replace(target)
    except OSError as error:
        raise InputError(f"{path} cannot be written: {error.strerror or error}") from error
    finally:
        part.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a text in UTF-8, see :func:`whole_file`."""
    with whole_file(path) as part:
        part.write_text(text, encoding="utf-8", newline="\n")


def _is_special(path: Path) -> bool:
    return path.exists() and not path.is_file()


def _sync(path: Path) -> None:
    """Have it on the disk before its name is, which a power cut would otherwise leave empty."""
    with path.open("rb") as file:
        os.fsync(file.fileno())

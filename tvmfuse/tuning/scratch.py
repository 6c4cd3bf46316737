"""A temporary folder that names its process, so that the next one removes what a kill leaves."""

from __future__ import annotations

import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

_PREFIX = "tvmfuse-tune-"
_NAME = re.compile(rf"{_PREFIX}(\d+)-")


@contextmanager
def scratch() -> Iterator[Path]:
    """Yield an empty folder, and remove it afterwards with those of processes that are gone."""
    _sweep(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=f"{_PREFIX}{os.getpid()}-") as folder:
        yield Path(folder)


def _sweep(place: Path) -> None:
    for folder in place.glob(f"{_PREFIX}*"):
        named = _NAME.match(folder.name)
        if named is not None and not psutil.pid_exists(int(named[1])):
            shutil.rmtree(folder, ignore_errors=True)  # may be another user's

"""One bundle, written once; each test gets a copy that it may damage."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tvmfuse import bundle

if TYPE_CHECKING:
    from tvmfuse.compiled import Compiled


@pytest.fixture(scope="session")
def _saved(compiled: Compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved") / "affine.tvmfuse"
    bundle.save(compiled, path)
    return path


@pytest.fixture
def folder(_saved: Path, tmp_path: Path) -> Path:
    """A whole bundle."""
    return Path(shutil.copytree(_saved, tmp_path / "affine.tvmfuse"))

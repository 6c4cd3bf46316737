"""Call the command in this process; it takes TVM a second to load in another."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tvmfuse import bundle
from tvmfuse.cli import main

if TYPE_CHECKING:
    from tvmfuse.compiled import Compiled


@dataclass(frozen=True)
class Answer:
    """What a command left behind."""

    code: int
    out: str
    err: str

    @property
    def error(self) -> str:
        """The last line of standard error, which tells why it failed."""
        assert "Traceback" not in self.err
        return self.err.rstrip("\n").rpartition("\n")[2]

    @property
    def json(self) -> Any:
        """All of standard output."""
        return json.loads(self.out)


Cli = Callable[..., Answer]


@pytest.fixture
def cli(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Cli:
    """Run ``tvmfuse`` with some arguments."""

    def call(*arguments: str | Path) -> Answer:
        monkeypatch.setattr(sys, "argv", ["tvmfuse", *map(str, arguments)])
        capfd.readouterr()
        code = main()
        out, err = capfd.readouterr()
        return Answer(code, out, err)

    return call


@pytest.fixture
def process() -> Cli:
    """Run ``python -m tvmfuse`` with some arguments and variables."""

    def call(*arguments: str | Path, **variables: str) -> Answer:
        done = subprocess.run(
            [sys.executable, "-m", "tvmfuse", *map(str, arguments)],
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
            cwd=Path(__file__).parents[2],
            env={**os.environ, **variables},
        )
        return Answer(done.returncode, done.stdout, done.stderr)

    return call


@pytest.fixture(scope="session")
def _saved(compiled: Compiled, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return bundle.save(compiled, tmp_path_factory.mktemp("saved") / "affine.tvmfuse").path


@pytest.fixture
def folder(_saved: Path, tmp_path: Path) -> Path:
    """A whole bundle."""
    return Path(shutil.copytree(_saved, tmp_path / "affine.tvmfuse"))

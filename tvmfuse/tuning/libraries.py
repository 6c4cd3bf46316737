"""Compiled candidates in a folder: a busy machine may build what a quiet one times."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmfuse._tvm import tvm
from tvmfuse.store.records import digest


@dataclass(frozen=True)
class Libraries:
    """Libraries by what they were compiled from.

    Parameters
    ----------
    folder : Path
        Where they lie; for one version of the code that makes them.
    """

    folder: Path

    def find(self, kernel: str, decisions: Mapping[str, Any]) -> tuple[dict[str, Any], Any] | None:
        """Return what was really decided, and the code; None where it was not built.

        Parameters
        ----------
        kernel : str
            What tells a kernel, its target and its machine from others.
        decisions : Mapping
            What was asked for.
        """
        path = self._path(kernel, decisions)
        if not path.exists():
            return None
        taken = json.loads(path.with_suffix(".json").read_text(encoding="utf-8"))
        return taken, tvm.runtime.load_module(str(path))

    def keep(
        self, kernel: str, decisions: Mapping[str, Any], built: tuple[Mapping[str, Any], Any]
    ) -> None:
        """Keep what was compiled."""
        taken, library = built
        path = self._path(kernel, decisions)
        self.folder.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".json").write_text(json.dumps(dict(taken)), encoding="utf-8")
        part = path.with_name(f"{os.getpid()}-{path.name}")
        library.export_library(str(part))
        part.replace(path)  # last: with it, the other file is there

    def _path(self, kernel: str, decisions: Mapping[str, Any]) -> Path:
        return self.folder / f"{digest(kernel, dict(decisions))[:32]}.so"

"""What a long run has measured so far, so that an interrupted one goes on."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

from tvmfuse import files


@dataclass
class Journal:
    """What was measured so far, on disk.

    Parameters
    ----------
    path : Path
        One line of JSON about the run, then one for each model, or whatever it goes through.
    run : Mapping
        What makes a run the same: its options, and the code that is measured. What
        another run left in the file is dropped.
    rows : dict
        The rows of each model, by its name.
    """

    path: Path
    run: Mapping[str, Any]
    rows: dict[str, Sequence[Mapping[str, Any]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Read what an earlier, interrupted run left."""
        lines = self.path.read_text(encoding="utf-8").splitlines() if self.path.exists() else []
        if lines and lines[0] == json.dumps(self.run):
            for line in lines[1:]:
                with suppress(ValueError):  # the last line may be torn
                    said = json.loads(line)
                    self.rows[said["model"]] = said["rows"]
        self.path.parent.mkdir(parents=True, exist_ok=True)
        files.write_text(self.path, "".join(map(_line, [self.run, *self._known()])))

    def add(self, name: str, rows: Sequence[Mapping[str, Any]]) -> None:
        """Keep the rows of a model."""
        self.rows[name] = rows
        with self.path.open("a", encoding="utf-8") as file:
            file.write(_line({"model": name, "rows": rows}))
            file.flush()
            os.fsync(file.fileno())

    def finish(self) -> None:
        """Forget the run."""
        self.path.unlink()

    def _known(self) -> Iterator[Mapping[str, Any]]:
        return ({"model": name, "rows": rows} for name, rows in self.rows.items())


def _line(what: Mapping[str, Any]) -> str:
    return json.dumps(what) + "\n"


def digest(package: Path) -> str:
    """Return a hash of the source code in a folder."""
    content = sha256()
    for path in sorted(package.rglob("*.py")):
        content.update(path.read_bytes())
    return content.hexdigest()[:16]

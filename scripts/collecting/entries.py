"""The models to measure, those that teach most first."""

from __future__ import annotations

import tomllib
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import generated_graphs

MODELS_TOML = Path(__file__).parent.parent / "models.toml"

_GENERATED_BETWEEN = 3  # generated graphs between two real models: they resemble one another least


@dataclass(frozen=True)
class Entry:
    """A model to measure, and what to feed it.

    Parameters
    ----------
    name, family : str
        The model, and the architectures that it belongs with.
    path : Path, optional
        An ONNX file; a generated graph without.
    seed : int
        Of a generated graph.
    inputs : Mapping of str to Mapping
        As in ``models.toml``.
    """

    name: str
    family: str
    path: Path | None = None
    seed: int = 0
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def source(self) -> Any:
        """What the frontend imports."""
        return generated_graphs.module(self.seed) if self.path is None else self.path

    @property
    def shapes(self) -> dict[str, Sequence[int]]:
        """What binds the open extents of its inputs."""
        return {name: given["shape"] for name, given in self.inputs.items() if "shape" in given}


def entries(models: Path | None, exported: Path | None, *, generated: int) -> list[Entry]:
    """Return the models that there are.

    First come those that a cost model is judged by, then one of each family, between
    them generated graphs, then the rest.

    Parameters
    ----------
    models, exported : Path, optional
        Folders of ``fetch_models.py`` and of ``bench/export_models.py``.
    generated : int
        Random graphs.
    """
    listed = tomllib.loads(MODELS_TOML.read_text(encoding="utf-8"))
    real = [
        Entry(name, given["family"], folder / f"{name}.onnx", inputs=given["inputs"])
        for kind, folder in (("models", models), ("exported", exported))
        for name, given in (listed[kind].items() if folder else ())
        if (folder / f"{name}.onnx").exists()
    ]
    held_out = [entry for entry in real if entry.family in listed["held_out_families"]]
    others = _by_turns([entry for entry in real if entry not in held_out])
    random = [Entry(f"generated_{seed}", "generated", seed=seed) for seed in range(generated)]
    return [*held_out, *_mixed(others, random)]


def _by_turns(found: Sequence[Entry]) -> list[Entry]:
    """Return one model of each family, the smallest file first, then the second of each."""
    of: defaultdict[str, list[Entry]] = defaultdict(list)
    for entry in sorted(found, key=lambda entry: entry.path.stat().st_size if entry.path else 0):
        of[entry.family].append(entry)
    turns = max(map(len, of.values()), default=0)
    return [own[turn] for turn in range(turns) for own in of.values() if turn < len(own)]


def _mixed(real: Sequence[Entry], random: Sequence[Entry]) -> Iterator[Entry]:
    left = iter(random)
    for entry in real:
        yield entry
        for _ in range(_GENERATED_BETWEEN):
            yield from (each for each in (next(left, None),) if each is not None)
    yield from left

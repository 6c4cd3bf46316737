"""Keep a compiled model in a directory, and read it back.

A bundle is code: load only what you would also execute. Its checksums find
damage and mix-ups; they do not make a stranger's bundle safe.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from errno import ENOENT
from pathlib import Path
from typing import Any

import numpy as np
import safetensors
import safetensors.numpy

from tvmfuse.bundle import manifest
from tvmfuse.compiled import Compiled, KernelInfo
from tvmfuse.errors import BundleError
from tvmfuse.frontend import Signature
from tvmfuse.plan import FusionPlan
from tvmfuse.targets.export import export

_PARAMS = "params.safetensors"
_PLAN = "plan.json"
_KERNELS = "kernels.json"


@dataclass(frozen=True)
class Bundle:
    """A bundle whose files are all there, unchanged, and fit for this machine.

    Parameters
    ----------
    path : Path
        Its directory.
    manifest : Mapping
        What ``manifest.json`` says: model, versions, target, files.
    signature : Signature
        Names, shapes and dtypes of the inputs and outputs.
    """

    path: Path
    manifest: Mapping[str, Any]
    signature: Signature

    @property
    def library(self) -> Path:
        """Path of the library; an archive of objects where it was made for another system."""
        return self.path / str(self.manifest["library"])

    @property
    def target(self) -> str:
        """Name of the target that it was compiled for, such as ``cpu``."""
        return str(self.manifest["target"]["spec"])

    @property
    def kind(self) -> str:
        """TVM's kind of that target: ``llvm``, ``cuda`` or ``metal``."""
        return str(self.manifest["target"]["kind"])

    @property
    def n_bytes(self) -> int:
        """Size of all its files but the manifest, in bytes."""
        return sum(int(file["bytes"]) for file in self.manifest["files"].values())

    def plan(self) -> FusionPlan:
        """Read what was fused, and why the rest was not."""
        return FusionPlan.from_json(_read_json(self.path / _PLAN))

    def kernels(self) -> tuple[KernelInfo, ...]:
        """Read the list of kernels."""
        rows = _read_json(self.path / _KERNELS)["kernels"]
        return tuple(map(_kernel_info, rows))

    def params(self) -> Iterator[np.ndarray[Any, Any]]:
        """Read the weights one by one, in the order in which ``main`` takes them.

        Raises
        ------
        BundleError
            The file is no safetensors file, or lacks a weight.
        """
        path = self.path / _PARAMS
        try:
            with safetensors.safe_open(path, framework="np") as file:
                yield from map(file.get_tensor, self.manifest["params"])
        except safetensors.SafetensorError as error:
            raise BundleError(
                f"bundle: cannot read the weights in {path}: {error}; compile the model again"
            ) from error


def _kernel_info(row: Mapping[str, Any]) -> KernelInfo:
    places = tuple(tuple(place) for place in row.get("places", ()))
    return KernelInfo(**{**row, "nodes": tuple(row.get("nodes", ())), "places": places})


def save(compiled: Compiled, path: str | os.PathLike[str]) -> Bundle:
    """Write a compiled model as a bundle; all of it, or nothing.

    Parameters
    ----------
    compiled : Compiled
        What the pipeline made.
    path : str or path
        The directory to write, usually ``NAME.tvmfuse``. An older bundle there is
        replaced; until the very end it stays as it was.

    Returns
    -------
    Bundle
        The bundle as it now stands on the disk; not checked for this machine.

    Raises
    ------
    BundleError
        The place cannot be written to, or holds something else.
    EnvironmentMismatchError
        There is no C++ compiler that can link the library.
    """
    target = check_destination(path)
    staging = _beside(target)
    try:
        staging.mkdir()
        _write(compiled, staging)
        _replace(staging, target)
    except (OSError, safetensors.SafetensorError) as error:
        raise BundleError(f"bundle: cannot write {target}: {error}") from error
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return Bundle(target, _read_json(target / manifest.FILE), compiled.signature)


def read(path: str | os.PathLike[str]) -> Bundle:
    """Check a bundle: every file by size and sha256, then versions and the processor.

    Nothing of it is executed.

    Raises
    ------
    BundleError
        It is no bundle, a file is missing or changed, or it needs another machine.
    EnvironmentMismatchError
        It was made with another TVM.
    """
    folder = Path(path)
    content = manifest.read(folder)
    return Bundle(folder, content, Signature.from_json(content["signature"]))


def check_destination(path: str | os.PathLike[str]) -> Path:
    """Return where a bundle would be written, once it is clear that it can be.

    Raises
    ------
    BundleError
        The parent folder is missing or cannot be written to, or something that is no
        bundle is in the way.
    """
    target = Path(path).resolve()
    parent = target.parent
    if not parent.is_dir():
        raise BundleError(f"bundle: {parent} is not a folder; create it, or choose another output")
    if not os.access(parent, os.W_OK | os.X_OK):
        raise BundleError(f"bundle: {parent} is read-only; choose another output")
    is_free = not target.exists() or (target.is_dir() and not any(target.iterdir()))
    if not is_free and not manifest.is_in(target):
        raise BundleError(
            f"bundle: {target} exists and is not a tvmfuse bundle, so it is not overwritten; "
            "remove it, or choose another output"
        )
    probe = _beside(target)
    try:  # a mode that allows it does not mean that the disk does
        probe.mkdir()
        probe.rmdir()
    except OSError as error:
        # The folder is there, so "No such file or directory" would say nothing.
        why = "it takes no new folders" if error.errno == ENOENT else error.strerror
        raise BundleError(
            f"bundle: nothing can be written to {parent} ({why}); choose another output"
        ) from error
    return target


def _write(compiled: Compiled, folder: Path) -> None:
    library, *sources = export(compiled.executable, compiled.target, folder)
    # order="C" keeps 0-d arrays 0-d, which np.ascontiguousarray does not.
    params = {name: np.asarray(array, order="C") for name, array in compiled.params.items()}
    _write_json(folder / _PLAN, compiled.plan.to_json())
    safetensors.numpy.save_file(params, folder / _PARAMS)
    shutil.copymode(folder / _PLAN, folder / _PARAMS)  # safetensors keeps it from all others
    kernels = [asdict(kernel) for kernel in compiled.kernels]
    _write_json(folder / _KERNELS, {"schema": manifest.SCHEMA, "kernels": kernels})
    others = [path.name for path in sources] + [_PARAMS, _PLAN, _KERNELS]
    manifest.write(compiled, folder, library=library.name, others=others)
    for file in folder.iterdir():
        _sync(file)


def _replace(staging: Path, target: Path) -> None:
    """Put ``staging`` in the place of ``target``.

    A directory that is not empty cannot be renamed over, so the old one steps
    aside first: who is killed in between leaves no bundle, never half of one.
    """
    if not target.exists():
        staging.rename(target)
        return
    old = _beside(target)
    target.rename(old)
    try:
        staging.rename(target)
    except OSError:
        old.rename(target)
        raise
    shutil.rmtree(old, ignore_errors=True)


def _beside(target: Path) -> Path:
    """Return an unused hidden name in the same folder, and so on the same disk."""
    return target.with_name(f".{target.name}.{secrets.token_hex(4)}")


def _sync(path: Path) -> None:
    with path.open("rb") as file:
        os.fsync(file.fileno())


def _read_json(path: Path) -> Any:
    return json.loads(path.read_text("utf-8"))


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n", "utf-8")

"""Find CUDA's compiler and libraries: in Python packages, else in a toolkit."""

from __future__ import annotations

import importlib.util
import shutil
from dataclasses import dataclass
from pathlib import Path

from tvmfuse.errors import EnvironmentMismatchError
from tvmfuse.targets.cuda_compilers import Nvcc, Nvrtc

MAJOR = 13  # TVM's wheel is linked with the runtime library of CUDA 13

Compiler = Nvrtc | Nvcc


@dataclass(frozen=True)
class Toolkit:
    """A folder with CUDA's libraries and headers.

    ``pip install`` makes one of several packages together, ``nvidia/cu13``;
    NVIDIA's installer makes one at ``/usr/local/cuda``.
    """

    root: Path

    def library(self, name: str) -> Path | None:
        """Return the path of a shared library such as ``libnvrtc.so.13``, if there."""
        places = (self.root / folder / name for folder in ("lib", "lib64"))
        return next((path for path in places if path.is_file()), None)


def toolkits() -> tuple[Toolkit, ...]:
    """Return every toolkit on this machine, that of Python packages first."""
    roots = [Path(folder, f"cu{MAJOR}") for folder in _folders_of("nvidia")]
    if nvcc := shutil.which("nvcc"):
        roots.append(Path(nvcc).resolve().parents[1])
    roots.append(Path("/usr/local/cuda"))
    return tuple(Toolkit(root) for root in roots if root.is_dir())


def find_library(name: str) -> Path | None:
    """Return the path of a library of CUDA in the first toolkit that has it."""
    found = (toolkit.library(name) for toolkit in toolkits())
    return next((path for path in found if path is not None), None)


def find_compiler() -> Compiler:
    """Return NVRTC, which takes a third of the time, or else nvcc.

    Raises
    ------
    EnvironmentMismatchError
        This machine has neither.
    """
    for toolkit in toolkits():
        library = toolkit.library(f"libnvrtc.so.{MAJOR}")
        if library is not None:
            return Nvrtc(library, headers=toolkit.root / "include")
    if nvcc := shutil.which("nvcc"):
        return Nvcc(nvcc)
    raise EnvironmentMismatchError(
        f"target: compiling for CUDA needs NVRTC {MAJOR} or nvcc, and found neither; "
        "pip install 'tvmfuse[cuda]' (it needs no GPU)"
    )


def _folders_of(package: str) -> tuple[str, ...]:
    spec = importlib.util.find_spec(package)
    return tuple(spec.submodule_search_locations or ()) if spec else ()

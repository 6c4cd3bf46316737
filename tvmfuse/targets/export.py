"""Build for a target, and write what was built: a library, and device sources to read."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from tvmfuse.errors import EnvironmentMismatchError, LoweringError
from tvmfuse.host import detect
from tvmfuse.targets import cuda_toolkit
from tvmfuse.targets.base import Target

if TYPE_CHECKING:
    import tvm

_SUFFIXES = {"cuda": ".cu", "metal": ".metal"}


def compile_context(target: Target) -> AbstractContextManager[None]:
    """Return the context in which ``tvm.compile`` builds for ``target``.

    For CUDA, it makes the library hold machine code (a cubin for exactly the
    target's architecture) rather than text; no GPU and no driver are needed.

    Parameters
    ----------
    target : Target
        The device to build for.

    Returns
    -------
    context manager
        Within it, what TVM cannot generate code for is a ``LoweringError``.

    Raises
    ------
    EnvironmentMismatchError
        There is no compiler for CUDA.
    """
    if target.kind != "cuda":
        return _generating(target, nullcontext())
    from tvmfuse._tvm import cuda_offline

    compiler = cuda_toolkit.find_compiler()
    offline = cuda_offline.compiling_with(
        lambda source: compiler(source, target.attrs["arch"]),
        cudart=cuda_toolkit.find_library(f"libcudart.so.{cuda_toolkit.MAJOR}"),
    )
    return _generating(target, offline)


def export(executable: tvm.runtime.Executable, target: Target, folder: Path) -> tuple[Path, ...]:
    """Write an executable into a folder.

    Parameters
    ----------
    executable : tvm.runtime.Executable
        What ``tvm.compile`` made within :func:`compile_context`.
    target : Target
        What it was built for.
    folder : Path
        An existing folder.

    Returns
    -------
    tuple of Path
        The library first: ``lib.so``, or where this machine cannot link for the
        target's host, ``lib.tar`` with its object files. Then the generated device
        code, one file per module: ``kernels.cu`` or ``kernels.metal``.

    Raises
    ------
    EnvironmentMismatchError
        There is no C++ compiler, or it cannot link the library.
    """
    return (_library(executable, target, folder), *_sources(executable, folder))


def device_sources(executable: tvm.runtime.Executable) -> tuple[str, ...]:
    """Return the generated device code, one text per module."""
    modules = _imports(executable.mod)
    return tuple(each.inspect_source() for each in modules if each.kind in _SUFFIXES)


@contextmanager
def _generating(target: Target, device: AbstractContextManager[None]) -> Iterator[None]:
    try:
        with device:
            yield
    except (RuntimeError, TypeError, ValueError) as error:  # such as TVM's code generators raise
        reason = str(error).strip().partition("\n")[0]
        raise LoweringError(f"no code can be generated for {target.spec}: {reason}") from error


def _library(executable: tvm.runtime.Executable, target: Target, folder: Path) -> Path:
    host = target.attrs.get("host", target.attrs)
    if host["mtriple"] != detect().triple:
        path = folder / "lib.tar"
        executable.export_library(str(path))
        return path
    from tvmfuse._tvm import cxx

    compiler = cxx.compiler()
    path = folder / "lib.so"
    try:
        executable.export_library(str(path))
    except RuntimeError as error:
        reason = str(error).removeprefix("Compilation error:").strip().partition("\n")[0]
        raise EnvironmentMismatchError(
            f"{compiler} cannot link the library: {reason}; set CXX to another C++ compiler"
        ) from error
    return path


def _sources(executable: tvm.runtime.Executable, folder: Path) -> Iterator[Path]:
    modules = [module for module in _imports(executable.mod) if module.kind in _SUFFIXES]
    for index, module in enumerate(modules):
        name = f"kernels{index or ''}{_SUFFIXES[module.kind]}"
        path = folder / name
        path.write_text(module.inspect_source(), "utf-8")
        yield path


def _imports(module: tvm.runtime.Module) -> Iterator[tvm.runtime.Module]:
    """Yield the modules that ``module`` imports, directly or not."""
    for imported in module.imports:
        yield imported
        yield from _imports(imported)

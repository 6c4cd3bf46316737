"""``tvmfuse doctor``: say whether this machine has all that tvmfuse needs."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Literal

import typer

from tvmfuse import __version__
from tvmfuse.cli import console
from tvmfuse.cli.options import AsJson
from tvmfuse.errors import EnvironmentMismatchError

# In a process of its own: a bad pair of versions may crash instead of raising.
_TRY_TVM = """
from tvmfuse._tvm import tvm
tvm.ir.save_json(tvm.IRModule())
"""
_OPTIONAL = {
    "onnxruntime": "pip install onnxruntime to compare with it",
    "torch": "pip install torch to compile what torch.export wrote",
}


@dataclass(frozen=True)
class Check:
    """One thing that was looked at.

    Parameters
    ----------
    name : str
        What it is.
    state : str
        "ok"; "absent" where one can do without it; "broken" where one cannot.
    found : str
        What was found.
    fix : str
        What to do about it.
    """

    name: str
    state: Literal["ok", "absent", "broken"]
    found: str
    fix: str = ""


def check_machine(*, as_json: AsJson = False) -> None:
    """Check versions, compiler, processor and folders; exit with 2 where something is broken."""
    with console.stages() as begin:
        checks = tuple(_checks(begin))
    is_healthy = not any(check.state == "broken" for check in checks)
    if as_json:
        rows = [asdict(check) for check in checks]
        console.print_json("doctor", {"healthy": is_healthy, "checks": rows})
    else:
        cells = [(check.name, check.state, check.found, check.fix) for check in checks]
        console.print_table("This machine", ("what", "state", "found", "to do"), cells)
    if not is_healthy:
        raise typer.Exit(2)


def _checks(begin: Callable[[str], None]) -> Iterator[Check]:
    yield Check("tvmfuse", "ok", f"{__version__}, Python {sys.version.split()[0]}")
    begin("load TVM")
    tvm = _tvm()
    yield tvm
    begin("look around")
    if tvm.state == "ok":  # these ask TVM
        yield _compiler()
        yield _processor()
        yield _peaks()
    yield _threads()
    yield _cache()
    yield _store()
    yield _cuda()
    for package, fix in _OPTIONAL.items():
        found = _version(package)
        yield Check(package, "absent" if found == "none" else "ok", found, fix * (found == "none"))


def _tvm() -> Check:
    found = f"apache-tvm {_version('apache-tvm')}, apache-tvm-ffi {_version('apache-tvm-ffi')}"
    command = [sys.executable, "-c", _TRY_TVM]
    tried = subprocess.run(command, capture_output=True, text=True, check=False)
    if tried.returncode == 0:
        return Check("TVM", "ok", found)
    said = (tried.stderr.strip().splitlines() or [f"it ended with {tried.returncode}"])[-1]
    return Check("TVM", "broken", found, said.partition("Error: ")[2] or said)


def _compiler() -> Check:
    from tvmfuse._tvm import cxx

    try:
        compiler = cxx.compiler()
    except EnvironmentMismatchError as error:
        return Check("C++ compiler", "broken", "none", str(error))
    with tempfile.TemporaryDirectory() as folder:
        command = [compiler, "-shared", "-fPIC", "-x", "c++", "-", "-o", f"{folder}/lib.so"]
        tried = subprocess.run(
            command, input="#include <cmath>\n", capture_output=True, text=True, check=False
        )
    if tried.returncode == 0:
        return Check("C++ compiler", "ok", compiler)
    said = (tried.stderr.strip().splitlines() or ["nothing"])[0]
    fix = f"it cannot link a library: {said}; install another one, or set CXX to its path"
    return Check("C++ compiler", "broken", compiler, fix)


def _processor() -> Check:
    from tvmfuse import targets
    from tvmfuse.report import machine

    about, target = machine.describe(), targets.resolve("cpu")
    found = (
        f"{about['processor']} ({target.attrs['mcpu']}), {console.count(about['cores'], 'core')}, "
        f"{8 * target.vector_bytes}-bit vectors, {about['memory_gib']} GiB, load {about['load']}"
    )
    return Check("processor", "ok", found)


def _peaks() -> Check:
    from tvmfuse import targets
    from tvmfuse.calibrate import load_cached

    peaks = load_cached(targets.resolve("cpu"))
    if peaks is None:
        return Check("peaks", "absent", "not measured", "run tvmfuse calibrate for better plans")
    found = f"measured: {peaks.gflops:.0f} GFLOP/s, a kernel starts in {peaks.dispatch_us:.2g} µs"
    return Check("peaks", "ok", found)


def _threads() -> Check:
    from tvmfuse.host import detect

    set_to = os.environ.get("TVM_NUM_THREADS")
    found = f"TVM_NUM_THREADS={set_to}" if set_to else f"{detect().cores}, one on each core"
    return Check("threads", "ok", found)


def _cache() -> Check:
    import platformdirs

    folder = platformdirs.user_cache_path("tvmfuse")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            return Check("cache", "ok", str(folder))
    except OSError as error:
        fix = "calibration will not be kept; make the folder writable, or set XDG_CACHE_HOME"
        return Check("cache", "absent", f"{folder}: {error.strerror}", fix)


def _store() -> Check:
    from tvmfuse.store.location import VARIABLE, locate

    place = locate(os.environ.get(VARIABLE))
    # Only named: opening it may make it, or wait for a server.
    return Check("tuning store", "ok", f"{place.shown}, chosen by {place.origin}")


def _cuda() -> Check:
    from tvmfuse.targets import cuda_toolkit

    fix = "pip install 'tvmfuse[cuda]' to compile for NVIDIA GPUs"
    try:
        compiler = cuda_toolkit.find_compiler()
    except EnvironmentMismatchError:
        return Check("CUDA compiler", "absent", "none", fix)
    try:
        return Check("CUDA compiler", "ok", compiler.about())
    except EnvironmentMismatchError as error:
        return Check("CUDA compiler", "absent", str(error), fix)


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"

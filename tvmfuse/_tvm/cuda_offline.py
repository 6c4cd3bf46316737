"""Let TVM compile CUDA code on a machine without an NVIDIA driver.

TVM 0.27 calls a compiler only if its own CUDA runtime library is loaded;
otherwise the library that it exports holds CUDA text, to be compiled wherever it
is loaded. That runtime library is linked with the driver's ``libcuda.so.1``, so
without a driver ``import tvm`` leaves it out, in silence. With a stand-in of that
name, whose functions answer "no device", it loads just as well, also later.
"""

from __future__ import annotations

import ctypes
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from tvmfuse._tvm import cxx, tvm, tvm_ffi
from tvmfuse.errors import EnvironmentMismatchError, LoweringError, TargetError

_FACTORY = "ffi.Module.create.cuda"  # there once the runtime library is loaded
_CALLBACK = "tvm_callback_cuda_compile"
_DRIVER = "libcuda.so.1"

# What TVM's runtime library is linked with, and cuInit, by which anybody else
# learns that there is no device. 100 is CUDA_ERROR_NO_DEVICE.
_DRIVER_FUNCTIONS = (
    "cuInit",
    "cuDeviceGetName",
    "cuFuncSetAttribute",
    "cuLaunchKernelEx",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuTensorMapEncodeTiled",
)
_STAND_IN = "".join(f'extern "C" int {name}() {{ return 100; }}\n' for name in _DRIVER_FUNCTIONS)
_STAND_IN += "".join(
    f'extern "C" int {name}(int, const char** text) {{ *text = "no NVIDIA driver"; return 0; }}\n'
    for name in ("cuGetErrorName", "cuGetErrorString")
)


@contextmanager
def compiling_with(
    compile_source: Callable[[str], bytes], *, cudart: Path | None
) -> Iterator[None]:
    """Have TVM call ``compile_source`` for the CUDA text that it generates.

    Parameters
    ----------
    compile_source : callable
        Turns CUDA C++ into a cubin. An error of ours that it raises comes out of TVM
        as it is.
    cudart : Path or None
        ``libcudart.so.13``, which TVM's runtime library needs too; None to leave it
        to the system's loader.

    Raises
    ------
    TargetError
        This is not Linux: TVM has no CUDA runtime library elsewhere.
    EnvironmentMismatchError
        That library cannot be loaded.
    """
    _load_runtime(cudart)
    for error in (EnvironmentMismatchError, LoweringError, TargetError):
        tvm_ffi.register_error(error.__name__, error)
    original = tvm_ffi.get_global_func(_CALLBACK)
    tvm_ffi.register_global_func(_CALLBACK, compile_source, override=True)
    try:
        yield
    finally:
        tvm_ffi.register_global_func(_CALLBACK, original, override=True)


def _load_runtime(cudart: Path | None) -> None:
    if tvm_ffi.get_global_func(_FACTORY, allow_missing=True) is not None:
        return
    if not sys.platform.startswith("linux"):
        raise TargetError("target: code for CUDA can be compiled on Linux only")
    runtime = Path(tvm.libinfo.find_libtvm_runtime()).with_name("libtvm_runtime_cuda.so")
    try:
        ctypes.CDLL(str(cudart or "libcudart.so.13"))
        _load_driver()
        ctypes.CDLL(str(runtime))
    except OSError as error:
        raise EnvironmentMismatchError(
            f"target: TVM's CUDA runtime cannot be loaded: {error}; pip install 'tvmfuse[cuda]'"
        ) from error


def _load_driver() -> None:
    """Load the NVIDIA driver, or else its stand-in."""
    try:
        ctypes.CDLL(_DRIVER)
    except OSError:
        cxx.compiler()
        with tempfile.TemporaryDirectory(prefix="tvmfuse-") as folder:
            source, library = Path(folder, "driver.cc"), Path(folder, _DRIVER)
            source.write_text(_STAND_IN)
            options = [f"-Wl,-soname,{_DRIVER}"]  # the name under which it is looked for
            tvm.support.cc.create_shared(str(library), [str(source)], options=options)
            ctypes.CDLL(str(library))

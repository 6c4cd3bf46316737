"""A clock for the calls of TVM's virtual machine.

TVM 0.27 has no profiler of its virtual machine any more, only a hook before and after
each call. In Python that hook takes longer than a small kernel, so it is written in C++
and compiled once.
"""

from __future__ import annotations

import hashlib
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import platformdirs
import tvm_ffi
from tvm_ffi import libinfo

from tvmfuse._tvm import cxx
from tvmfuse.errors import EnvironmentMismatchError

_SOURCE = r"""
#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include <tvm/ffi/container/array.h>
#include <tvm/ffi/function.h>
#include <tvm/ffi/string.h>

namespace {
namespace ffi = tvm::ffi;
using Clock = std::chrono::steady_clock;

std::vector<std::pair<std::string, double>> calls;
Clock::time_point begin;

// The arguments of a hook: function, name, whether it is about to run, result, arguments.
ffi::Function Hook() {
  return ffi::Function::FromPacked([](const ffi::AnyView* args, int32_t, ffi::Any* result) {
    const auto now = Clock::now();
    *result = 0;
    if (!args[2].cast<bool>()) {
      const std::chrono::duration<double, std::micro> passed = now - begin;
      calls.emplace_back(std::string(args[1].cast<ffi::String>()), passed.count());
    }
    begin = Clock::now();
  });
}

ffi::Array<ffi::Any> Take() {
  ffi::Array<ffi::Any> taken;
  for (const auto& [name, passed] : calls) {
    taken.push_back(ffi::String(name));
    taken.push_back(passed);
  }
  calls.clear();
  return taken;
}
}  // namespace

TVM_FFI_DLL_EXPORT_TYPED_FUNC(hook, Hook);
TVM_FFI_DLL_EXPORT_TYPED_FUNC(take, Take);
"""


class KernelClock:
    """Times every call that virtual machines make, on one thread.

    Raises
    ------
    EnvironmentMismatchError
        There is no C++ compiler, or it cannot compile the hook.
    """

    def __init__(self) -> None:
        self._module = tvm_ffi.load_module(str(_library()))

    def attach(self, machine: Any) -> None:
        """Time all further calls of a ``relax.VirtualMachine``."""
        machine.set_instrument(self._module.hook())

    def take(self) -> list[tuple[str, float]]:
        """Return the calls since the last time, in order, each with its microseconds."""
        taken = list(self._module.take())
        return [(str(n), float(us)) for n, us in zip(taken[::2], taken[1::2], strict=True)]


def _library() -> Path:
    """Return the compiled hook, from the user's cache where it is there already."""
    about = f"{_SOURCE}{tvm_ffi.__version__}"
    name = f"kernel_clock_{hashlib.sha256(about.encode()).hexdigest()[:16]}.so"
    kept = Path(platformdirs.user_cache_dir("tvmfuse")) / "native" / name
    if kept.exists():
        return kept
    with tempfile.TemporaryDirectory() as folder:
        source, built = Path(folder) / "clock.cc", Path(folder) / name
        source.write_text(_SOURCE)
        includes = (libinfo.find_include_path(), libinfo.find_dlpack_include_path())
        command = [
            *(cxx.compiler(), "-std=c++17", "-O2", "-shared", "-fPIC"),
            *(f"-I{path}" for path in includes),
            *(str(source), "-o", str(built)),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            why = (done.stderr.strip().splitlines() or ["it says nothing"])[0]
            raise EnvironmentMismatchError(f"kernel clock: {command[0]} cannot compile it: {why}")
        kept.parent.mkdir(parents=True, exist_ok=True)
        # Another process may have put it there meanwhile; both are the same.
        partial = kept.with_suffix(f".{Path(folder).name}")
        partial.write_bytes(built.read_bytes())
        partial.replace(kept)
    return kept

"""Compiles device code for the CPU."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable

import pytest

from tests.gpu.emulator import Emulator, compile_for_cpu
from tests.gpu.lowering import DeviceCode


@pytest.fixture(scope="session")
def emulate(tmp_path_factory: pytest.TempPathFactory) -> Callable[[DeviceCode], Emulator]:
    """Return what compiles device code for the CPU."""
    cxx = next((name for name in ("g++", "clang++") if shutil.which(name)), None)
    if cxx is None:
        pytest.skip("no g++ and no clang++, which the emulator of GPU threads needs")
    knows_half = "__FLT16_MANT_DIG__" in _predefined_macros(cxx)

    def compile_code(code: DeviceCode) -> Emulator:
        if "half" in code.text and not knows_half:
            pytest.skip(f"{cxx} has no _Float16, which kernels in half precision need: GCC 12 has")
        return compile_for_cpu(code, tmp_path_factory.mktemp("emulator"), cxx=cxx)

    return compile_code


def _predefined_macros(cxx: str) -> str:
    command = [cxx, "-x", "c++", "-dM", "-E", "-"]
    return subprocess.run(command, input="", capture_output=True, text=True, check=True).stdout

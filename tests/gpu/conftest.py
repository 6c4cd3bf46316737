"""Compiles device code for the CPU, once per text."""

from __future__ import annotations

import shutil
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

    def compile_once(code: DeviceCode) -> Emulator:
        return compile_for_cpu(code, tmp_path_factory.mktemp("emulator"), cxx=cxx)

    return compile_once

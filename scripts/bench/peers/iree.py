"""IREE for this machine's CPU, with the flags that its guide for CPUs recommends."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import iree.runtime
import numpy as np
from iree.runtime import flags

Array = np.ndarray[Any, Any]

FLAGS = (
    "--iree-hal-target-device=local",
    "--iree-hal-local-target-device-backends=llvm-cpu",
    "--iree-llvmcpu-target-cpu=host",
    "--iree-opt-level=O3",
    "--iree-opt-data-tiling",
    # At -O3 it fuses more into one dispatch than its default limit, 32 KiB, has room for.
    "--iree-llvmcpu-stack-allocation-limit=262144",
)
OPSET = "17"  # the importer's ONNX dialect is complete for it; an older file is converted


def load(
    model: str, feeds: Mapping[str, Array], threads: int
) -> tuple[Callable[[], list[Array]], str]:
    """Compile an ONNX file; see ``tvmfuse/runtime/worker.py``."""
    compiler = version("iree-base-compiler")
    module = compile_once(Path(model), compiler)
    flags.parse_flags(f"--task_topology_group_count={threads}")
    config = iree.runtime.Config("local-task")
    loaded = iree.runtime.VmModule.mmap(config.vm_instance, str(module))
    functions = iree.runtime.load_vm_module(loaded, config)
    (name,) = (name for name in loaded.function_names if not is_private(name))
    run = functions[name]
    inputs = list(feeds.values())

    def call() -> list[Array]:
        outputs = run(*inputs)
        several = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return [output.to_host() for output in several]

    return call, f"iree {compiler}"


def compile_once(model: Path, compiler: str) -> Path:
    """Return the compiled module, which stays beside the model for the next process."""
    module = model.with_suffix(f".{compiler}.vmfb")
    if not module.exists():
        mlir, partial = model.with_suffix(".mlir"), model.with_suffix(".partial")
        run_tool("iree-import-onnx", model, "--opset-version", OPSET, "-o", mlir)
        run_tool("iree-compile", mlir, *FLAGS, "-o", partial)
        mlir.unlink()
        partial.replace(module)
    return module


def run_tool(name: str, *words: object) -> None:
    """Run a program of this environment, or stop with its first error."""
    line = [Path(sys.executable).with_name(name), *map(str, words)]
    done = subprocess.run(line, stderr=subprocess.PIPE, text=True, errors="replace", check=False)
    if done.returncode != 0:
        errors = [said for said in done.stderr.splitlines() if "error:" in said]
        sys.exit(f"{name}: {(errors or ['exit code ' + str(done.returncode)])[0]}")


def is_private(name: str) -> bool:
    """Whether a function of a module is not the model itself."""
    return name.startswith("__") or name.endswith("$async")

"""Plain TVM: its own ONNX importer and its default pipeline for the target, no tuning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx

Array = np.ndarray[Any, Any]


def load(
    model: str, feeds: Mapping[str, Array], threads: int
) -> tuple[Callable[[], list[Array]], str]:
    """Compile an ONNX file; see ``tvmfuse/runtime/worker.py``."""
    device = tvm.cpu()
    library = compile_once(Path(model), tvm.target.Target.from_device(device))
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), device)
    inputs = [tvm.runtime.tensor(array, device) for array in feeds.values()]

    def call() -> list[Array]:
        outputs = machine["main"](*inputs)
        several = [outputs] if isinstance(outputs, tvm.runtime.Tensor) else outputs
        return [output.numpy() for output in several]

    return call, f"tvm {version('apache-tvm')}"


def compile_once(model: Path, target: tvm.target.Target) -> Path:
    """Return the compiled library, which stays beside the model for the next process."""
    library = model.with_suffix(".tvm.so")
    if not library.exists():
        module = from_onnx(onnx.load(model))
        pipeline = relax.get_default_pipeline(target)
        executable = tvm.compile(module, target, relax_pipeline=pipeline)
        partial = model.with_suffix(".partial.so")
        executable.export_library(str(partial))
        partial.replace(library)
    return library

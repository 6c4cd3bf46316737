"""Run a model through our importer, and through TVM's own."""

from __future__ import annotations

import contextlib
import io
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest
from tvm.relax.frontend.onnx import from_onnx

from tvmfuse._tvm import relax, tvm
from tvmfuse.frontend import import_model

Array = np.ndarray[Any, Any]
Run = Callable[[onnx.ModelProto, Mapping[str, Array]], list[Array]]


@pytest.fixture(scope="session")
def run() -> Run:
    """Return a function that imports with tvmfuse, builds with plain TVM and runs."""
    return lambda model, inputs: _run(import_model(model).module, model, inputs)


@pytest.fixture(scope="session")
def run_by_tvm() -> Run:
    """Return a function that imports with TVM alone: what our repair is measured against."""

    def run(model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
        with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _run(from_onnx(model), model, inputs)

    return run


@pytest.fixture
def parse() -> Callable[..., onnx.ModelProto]:
    """Return a function that reads a graph in ONNX's textual form."""

    def parse(graph: str, *, opset: int = 20) -> onnx.ModelProto:
        header = f'<ir_version: 10, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
        return onnx.parser.parse_model(f"{header} {graph}")

    return parse


def _run(module: Any, model: onnx.ModelProto, inputs: Mapping[str, Array]) -> list[Array]:
    target = tvm.target.Target("llvm")
    built = relax.build(module, target, relax_pipeline=relax.get_default_pipeline(target))
    main = relax.VirtualMachine(built, tvm.cpu())["main"]
    result = main(*(tvm.runtime.tensor(inputs[value.name]) for value in model.graph.input))
    return [r.numpy() for r in ([result] if hasattr(result, "numpy") else list(result))]

"""Run an imported model with plain TVM: what is tested here is the import alone."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import onnx
import pytest

from tvmfuse.frontend import Model

Array = np.ndarray[Any, Any]
Run = Callable[[Model, Mapping[str, Array]], dict[str, Array]]


@pytest.fixture(scope="session")
def run() -> Run:
    """Return a function that builds a model with TVM's own CPU pipeline and runs it."""
    from tvmfuse._tvm import relax, tvm

    target = tvm.target.Target("llvm")
    pipeline = relax.get_default_pipeline(target)

    def run(model: Model, inputs: Mapping[str, Array]) -> dict[str, Array]:
        built = relax.build(model.module, target, relax_pipeline=pipeline)
        main = relax.VirtualMachine(built, tvm.cpu())["main"]
        arguments = [tvm.runtime.tensor(inputs[spec.name]) for spec in model.signature.inputs]
        result = main(*arguments)
        results = [result] if hasattr(result, "numpy") else list(result)
        names = [spec.name for spec in model.signature.outputs]
        return {name: r.numpy() for name, r in zip(names, results, strict=True)}

    return run


@pytest.fixture
def parse() -> Callable[..., onnx.ModelProto]:
    """Return a function that reads a graph in ONNX's textual form."""

    def parse(graph: str, *, opset: int = 20, ir_version: int = 10) -> onnx.ModelProto:
        header = f'<ir_version: {ir_version}, opset_import: ["" : {opset}, "com.microsoft" : 1]>'
        return onnx.parser.parse_model(f"{header} {graph}")

    return parse

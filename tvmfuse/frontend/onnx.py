"""Import an ONNX model."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import onnx

from tvmfuse._tvm.onnx import import_graph, supported_operators
from tvmfuse.frontend import onnx_check, onnx_file
from tvmfuse.frontend.model import Model, Shapes
from tvmfuse.frontend.onnx_shapes import bind_shapes, drop_default_inputs
from tvmfuse.frontend.onnx_simplify import OLDEST_OPSET, has_definition, simplify
from tvmfuse.frontend.relax import read_signature


def import_onnx(
    source: str | PathLike[str] | onnx.ModelProto, shapes: Shapes, *, keep_params: bool
) -> Model:
    """Import the ONNX model in a file or in memory; see :func:`tvmfuse.frontend.import_model`."""
    if isinstance(source, onnx.ModelProto):
        label = stem = source.graph.name or "model"
        model = onnx.ModelProto()
        model.CopyFrom(source)
        onnx_file.check_complete(model, label)
    else:
        path = Path(source)
        label, stem = str(path), path.stem
        model = onnx_file.read(path)

    supported = supported_operators()
    _check(model, label, supported)
    drop_default_inputs(model.graph)
    bind_shapes(model.graph, shapes, label)
    # Later steps may rename values, but inputs and outputs keep their order.
    inputs = [value.name for value in model.graph.input]
    outputs = [value.name for value in model.graph.output]

    model = simplify(model, label, supported)
    onnx_check.check_operators(model, label, supported)
    module = import_graph(
        model.graph, opset=onnx_check.opset(model), name=label, keep_params=keep_params
    )
    return Model(stem, module, read_signature(module, inputs, outputs, label))


def _check(model: onnx.ModelProto, label: str, supported: frozenset[str]) -> None:
    """Refuse what cannot be imported whatever the shapes are."""
    onnx_check.check_header(model, label)
    onnx_check.check_interface(model.graph, label)
    version = max(onnx_check.opset(model), OLDEST_OPSET)
    used = set(map(onnx_check.operator, onnx_check.nodes(model)))
    defined = {op for op in used - supported if has_definition(op, version)}
    onnx_check.check_operators(model, label, supported | defined | {"If", "Loop", "Scan"})

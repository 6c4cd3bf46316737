"""torch.compile (Inductor).

The exported networks are built anew in torch from the same seed, as its users have
them; other ONNX files come through onnx2torch. A file may say which function of
``torch.nn.functional`` it is, which then is called without being compiled.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxscript.optimizer
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))
import networks

Array = np.ndarray[Any, Any]

FOLDED_BYTES = 1 << 24  # what folding may make of constants
EAGER = "eager"  # a function that PyTorch has a kernel for, called as its users call it


def load(
    model: str, feeds: Mapping[str, Array], threads: int
) -> tuple[Callable[[], list[Array]], str]:
    """Compile an ONNX file; see ``tvmfuse/runtime/worker.py``."""
    path = Path(model)
    # Compiled code stays beside the model for the next process; it depends on the threads.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(path.parent / f"inductor-{threads}")
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:  # may be set once only
        torch.set_num_interop_threads(1)
    torch._inductor.config.freezing = True  # weights are constants, as for every other side
    module, origin = build(path)
    torch._dynamo.reset()  # it would take the next model for the same function again
    compiled = module if origin == EAGER else torch.compile(module.eval())
    inputs = [torch.from_numpy(array) for array in feeds.values()]

    def call() -> list[Array]:
        with torch.no_grad():
            outputs = compiled(*inputs)
        several = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return [output.numpy() for output in several]

    call()  # compiles
    return call, f"torch {torch.__version__.partition('+')[0]}, {origin}"


def eager_name(path: Path) -> str | None:
    """Return the function of ``torch.nn.functional`` that a file says it is, if any."""
    said = {prop.key: prop.value for prop in onnx.load(path).metadata_props}
    return said.get("torch.eager")


def build(path: Path) -> tuple[Callable[..., Any], str]:
    """Return the network in torch, and where it comes from."""
    if (named := eager_name(path)) is not None:
        return getattr(nn.functional, named), EAGER
    name = path.stem.removesuffix("_bn")
    if name in networks.BUILDERS:
        return networks.build(name).module, "built in torch"
    return convert(onnx.load(path)), "through onnx2torch"


def convert(model: onnx.ModelProto) -> nn.Module:
    """Return an ONNX model in torch, by onnx2torch 1.5.15 and what it lacks.

    Its own Reshape reads the shape from a tensor, which torch.compile cannot trace.
    """
    networks.import_torchvision()  # onnx2torch imports it
    import onnx2torch
    from onnx2torch.node_converters import registry
    from onnx2torch.onnx_graph import OnnxGraph
    from onnx2torch.onnx_node import OnnxNode
    from onnx2torch.utils.common import (
        OnnxMapping,
        OperationConverterResult,
        onnx_mapping_from_node,
    )

    def global_max_pool(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
        return OperationConverterResult(GlobalMaxPool(), onnx_mapping_from_node(node))

    def reshape(node: OnnxNode, graph: OnnxGraph) -> OperationConverterResult:
        data, shape = node.input_values
        if shape not in graph.initializers:
            raise NotImplementedError(f"Reshape by a shape that is computed ({shape})")
        extents = graph.initializers[shape].to_numpy().tolist()
        return OperationConverterResult(Reshape(extents), OnnxMapping((data,), node.output_values))

    known = registry._CONVERTER_REGISTRY
    known[registry.OperationDescription("", "GlobalMaxPool", 1)] = global_max_pool
    for version in (5, 13, 14):
        known[registry.OperationDescription("", "Reshape", version)] = reshape
    folded = onnxscript.optimizer.optimize(model, output_size_limit=FOLDED_BYTES)
    return onnx2torch.convert(with_initializers(folded))


class Reshape(nn.Module):
    """ONNX's Reshape by a shape that is known."""

    def __init__(self, shape: list[int]) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return x in that shape, where 0 keeps an extent."""
        return x.reshape([extent or x.shape[axis] for axis, extent in enumerate(self.shape)])


class GlobalMaxPool(nn.Module):
    """The largest value of each channel."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return it with extents of 1."""
        return x.amax(tuple(range(2, x.ndim)), keepdim=True)


def with_initializers(model: onnx.ModelProto) -> onnx.ModelProto:
    """Turn constant nodes into initializers, where onnx2torch looks for weights."""
    graph = model.graph
    for node in [node for node in graph.node if node.op_type == "Constant"]:
        (attribute,) = node.attribute
        if attribute.name == "value":
            tensor = graph.initializer.add()
            tensor.CopyFrom(attribute.t)
            tensor.name = node.output[0]
            graph.node.remove(node)
    return model

"""Bring an ONNX model into the form that TVM's importer can take.

Nothing is fused here, and a batch-norm is not folded into a convolution: what
belongs into one kernel is decided later, on Relax.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager

import numpy as np
import onnx
import onnx_ir
from onnx import defs, inliner, shape_inference, version_converter
from onnx_ir.passes import common
from onnxscript import optimizer

from tvmfuse.errors import ModelError
from tvmfuse.frontend.onnx_branches import select_branches
from tvmfuse.frontend.onnx_check import check_structure, label, nodes, operator, opset
from tvmfuse.frontend.onnx_file import one_line
from tvmfuse.frontend.onnx_loops import unroll_loops
from tvmfuse.frontend.onnx_pooling import settle_ceil_mode
from tvmfuse.frontend.onnx_shapes import forget_inferable_shapes
from tvmfuse.frontend.onnx_weights import attach_weights, detach_weights

OLDEST_OPSET = 17
"""Older models are converted: TVM 0.27 mistakes several operators of opsets 7 to 12."""

LARGEST_CONSTANT = 2**27
"""Elements; a few bytes of a damaged file can ask for any size."""

# What ONNX's libraries raise on a model that they cannot take.
_FAILURES = (
    ArithmeticError,
    AttributeError,
    LookupError,
    RuntimeError,
    TypeError,
    ValueError,
    shape_inference.InferenceError,
    version_converter.ConvertError,
)

_MOST_ROUNDS = 10

# Types of weights that products read as they are.
_STORED = frozenset(getattr(onnx_ir.DataType, name) for name in ("INT4", "UINT4", "INT8", "UINT8"))


def simplify(model: onnx.ModelProto, name: str, supported: Collection[str]) -> onnx.ModelProto:
    """Convert, infer and fold until only operators on run-time values are left.

    Parameters
    ----------
    model : onnx.ModelProto
        A model whose inputs have known shapes; its weights are taken out of it.
    name : str
        What it is called in messages.
    supported : collection of str
        Operators that need not be replaced by their definition.

    Returns
    -------
    onnx.ModelProto
        The same computation at opset 17 or newer, without functions and control
        flow, with shape arithmetic folded and with inferred types.

    Raises
    ------
    ModelError
        The model is damaged, its opset cannot be converted, shapes or types
        contradict each other, or an operator on constants cannot be computed.
    """
    # Up to version 3 of the format every constant had to be an input as well.
    model.ir_version = max(model.ir_version, 8)
    _name_nodes(model.graph)
    weights = detach_weights(model.graph)
    check_structure(model, name)
    forget_inferable_shapes(model.graph)
    if opset(model) < OLDEST_OPSET:
        model = _attempt(_convert, model, f"{name}: opset {opset(model)} cannot be converted")
    model = _attempt(lambda m: _inline(m, supported), model, f"{name}: functions cannot be inlined")
    model = _attempt(settle_ceil_mode, model, f"{name}: the results of pooling cannot be counted")
    model = _attempt(_infer, model, f"{name}: shapes or types contradict each other")
    attach_weights(model.graph, weights)
    return _attempt(lambda m: _fold(m, name), model, f"{name}: constants cannot be folded")


def has_definition(op: str, version: int) -> bool:
    """Tell whether ONNX defines ``op`` by simpler operators."""
    if not defs.has(op):
        return False
    try:
        schema = defs.get_schema(op, version)
    except defs.SchemaError:
        return False
    kinds = ("has_function", "has_context_dependent_function")
    return any(getattr(schema, kind) for kind in kinds)


def _name_nodes(graph: onnx.GraphProto) -> None:
    """Call a node without a name by its first output, for messages."""
    for node in graph.node:
        node.name = label(node)


def _attempt(
    step: Callable[[onnx.ModelProto], onnx.ModelProto], model: onnx.ModelProto, complaint: str
) -> onnx.ModelProto:
    try:
        return step(model)
    except _FAILURES as error:
        # ONNX's folder wraps what an operator raised.
        cause = error.__cause__ or error
        raise ModelError(f"{complaint}: {one_line(cause)}") from error


def _convert(model: onnx.ModelProto) -> onnx.ModelProto:
    return version_converter.convert_version(model, OLDEST_OPSET)


def _inline(model: onnx.ModelProto, supported: Collection[str]) -> onnx.ModelProto:
    if model.functions:
        model = inliner.inline_local_functions(model, convert_version=True)
    defined = {
        op
        for op in map(operator, nodes(model))
        if op not in supported and has_definition(op, opset(model))
    }
    if not defined:
        return model
    for node in nodes(model):
        if operator(node) in defined:
            _state_defaults(node, opset(model))
    _state_types(model.graph)
    model = inliner.inline_selected_functions(
        model, [("", op) for op in sorted(defined)], inline_schema_functions=True
    )
    return _inline(model, supported)


def _state_defaults(node: onnx.NodeProto, version: int) -> None:
    """Write out the attributes of ``node`` that are left out: the inliner asks for them."""
    given = {attribute.name for attribute in node.attribute}
    for name, attribute in defs.get_schema(node.op_type, version).attributes.items():
        if name not in given and attribute.default_value.name:
            node.attribute.append(attribute.default_value)


def _state_types(graph: onnx.GraphProto) -> None:
    """Write down the types of constants: the inliner knows those of other values only."""
    known = {value.name for value in (*graph.input, *graph.value_info)}
    for tensor in graph.initializer:
        if tensor.name not in known:
            graph.value_info.append(
                onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
            )


def _infer(model: onnx.ModelProto) -> onnx.ModelProto:
    return shape_inference.infer_shapes(model, check_type=True, strict_mode=True, data_prop=True)


def _fold(model: onnx.ModelProto, name: str) -> onnx.ModelProto:
    with _quiet():
        folded = onnx_ir.from_proto(model)
        _fold_constants(folded)
        while unroll_loops(folded.graph, name) | select_branches(folded.graph, name):
            _fold_constants(folded)
        common.RemoveUnusedNodesPass()(folded)
        common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(folded)
        common.NameFixPass()(folded)
        return onnx_ir.to_proto(folded)


def _fold_constants(model: onnx_ir.Model) -> None:
    """Fold until nothing changes: resolving an ``If`` can make more values constant."""
    common.LiftConstantsToInitializersPass(lift_all_constants=True, size_limit=0)(model)
    for _ in range(_MOST_ROUNDS):
        folded = optimizer.fold_constants(
            model,
            onnx_shape_inference=True,
            output_size_limit=LARGEST_CONSTANT,
            should_fold=_is_worth_folding,
        )
        if not folded.modified:
            return


def _is_worth_folding(node: onnx_ir.Node) -> bool:
    """Whether a constant result is small, and no weight of bytes that a kernel can read."""
    stored = node.inputs[0] if node.op_type in ("Cast", "DequantizeLinear") else None
    if stored is not None and stored.dtype in _STORED and len(stored.shape or ()) > 1:
        return False
    shapes = [output.shape for output in node.outputs if output.shape is not None]
    sizes = [math.prod(extent for extent in s if isinstance(extent, int)) for s in shapes]
    return max(sizes, default=0) <= LARGEST_CONSTANT


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep warnings back: an operator that cannot be folded is left to TVM."""
    loggers = [logging.getLogger(name) for name in ("onnx_ir", "onnxscript")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with np.errstate(all="ignore"):
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)

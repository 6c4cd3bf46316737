"""Refuse an ONNX model that is damaged or cannot be imported, before importing it.

ONNX's own checker finds most damage (cycles, values defined twice, tensors cut
short). What it lets pass, or says badly, is checked here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterator

import onnx
from onnx import TensorProto, defs

from tvmfuse._tvm.onnx import qualified
from tvmfuse.errors import ModelError
from tvmfuse.frontend.onnx_file import one_line, tensors
from tvmfuse.frontend.onnx_weights import check_data

_DTYPES = frozenset(
    {
        TensorProto.BOOL,
        TensorProto.INT8,
        TensorProto.INT16,
        TensorProto.INT32,
        TensorProto.INT64,
        TensorProto.UINT8,
        TensorProto.UINT16,
        TensorProto.UINT32,
        TensorProto.UINT64,
        TensorProto.FLOAT16,
        TensorProto.BFLOAT16,
        TensorProto.FLOAT,
        TensorProto.DOUBLE,
    }
)
# Of weights only.
_NARROW = frozenset({TensorProto.INT4, TensorProto.UINT4})
"""Element types that are compiled."""


def check_header(model: onnx.ModelProto, name: str) -> None:
    """Raise unless ``model`` holds a graph of a version that is understood.

    Raises
    ------
    ModelError
        It has no graph, no operator set, or one that is too new, or names that
        are no text.
    """
    if not model.HasField("graph"):
        raise ModelError(f"{name}: the model holds no graph")
    if not all(map(_is_readable, nodes(model))):
        raise ModelError(f"{name}: the model is damaged: a name in it is no printable text")
    if model.ir_version < 3:
        raise ModelError(
            f"{name}: the format must be version 3 or newer, but it is {model.ir_version}: "
            "export the model again"
        )
    newest = defs.onnx_opset_version()
    if opset(model) == 0:
        raise ModelError(f"{name}: the model does not say which opset it uses: export it again")
    if opset(model) > newest:
        raise ModelError(
            f"{name}: opset {opset(model)} is newer than {newest}, the newest that onnx "
            f"{onnx.__version__} knows: export the model with an older opset, or upgrade onnx"
        )


def check_interface(graph: onnx.GraphProto, name: str) -> None:
    """Raise unless inputs and outputs are tensors with names of their own.

    Raises
    ------
    ModelError
        A name is empty or used twice, there is no output, or a type is unsupported.
    """
    if not graph.output:
        raise ModelError(f"{name}: the graph has no outputs, so there is nothing to compile")
    if "" in (value.name for value in (*graph.input, *graph.output, *graph.initializer)):
        raise ModelError(f"{name}: an input, output or constant of the graph has an empty name")
    for kind, names in (
        ("input", [value.name for value in graph.input]),
        ("constant", [tensor.name for tensor in graph.initializer]),
    ):
        repeated = [text for text, count in Counter(names).items() if count > 1]
        if repeated:
            raise ModelError(f"{name}: two {kind}s of the graph are called {repeated[0]!r}")
    for value in (*graph.input, *graph.output):
        _check_type(value, name)
    for tensor in tensors(graph):
        if tensor.data_type not in _DTYPES | _NARROW:
            raise ModelError(
                f"{name}: the constant {tensor.name!r} has elements of type "
                f"{_dtype(tensor.data_type)}, which cannot be compiled: {_advice()}"
            )
        check_data(tensor, name)


def check_operators(model: onnx.ModelProto, name: str, supported: Collection[str]) -> None:
    """Raise unless every operator, also those in subgraphs and functions, is supported.

    Parameters
    ----------
    model : onnx.ModelProto
        The model.
    name : str
        What it is called in messages.
    supported : collection of str
        Operators that can be imported, with their domain unless it is ONNX's own.

    Raises
    ------
    ModelError
        The message lists all unsupported operators with one node of each.
    """
    known = {*supported, *(qualified(f.domain, f.name) for f in model.functions)}
    places: dict[str, list[str]] = {}
    for node in nodes(model):
        if operator(node) not in known:
            places.setdefault(operator(node), []).append(label(node))
    if not places:
        return
    listed = ", ".join(
        f"{key} ({len(where)}×, first in node {where[0]!r})" for key, where in places.items()
    )
    raise ModelError(
        f"{name}: these operators are not supported: {listed}: "
        "export the model without them, or cut it there"
    )


def check_structure(model: onnx.ModelProto, name: str) -> None:
    """Raise unless ONNX's own checker accepts ``model``.

    Raises
    ------
    ModelError
        The graph is cyclic or unsorted, a value is undefined or defined twice,
        a tensor's data does not fit its shape, an attribute has the wrong type …
    """
    # The checker wants a shape on every output; inference adds it only later.
    bare = [v for v in model.graph.output if not v.type.tensor_type.HasField("shape")]
    for value in bare:
        value.type.tensor_type.shape.SetInParent()
    try:
        onnx.checker.check_model(model)
    except (onnx.checker.ValidationError, ValueError) as error:
        raise ModelError(f"{name}: the model is damaged: {one_line(error)}") from error
    finally:
        for value in bare:
            value.type.tensor_type.ClearField("shape")


def opset(model: onnx.ModelProto) -> int:
    """Return the version of ONNX's own operators, or 0 where none is given."""
    versions = [s.version for s in model.opset_import if s.domain in ("", "ai.onnx")]
    return max(versions, default=0)


def operator(node: onnx.NodeProto) -> str:
    """Return the operator of ``node``, with its domain unless that is ONNX's own."""
    return qualified(node.domain, node.op_type)


def label(node: onnx.NodeProto) -> str:
    """Return what a person calls ``node``: its name, else its first output."""
    return node.name or next(iter(node.output), "")


def nodes(model: onnx.ModelProto) -> Iterator[onnx.NodeProto]:
    """Return the nodes of the graph, of its functions and of all subgraphs."""
    yield from _nested(model.graph.node)
    for function in model.functions:
        yield from _nested(function.node)


def _nested(sequence: Iterator[onnx.NodeProto]) -> Iterator[onnx.NodeProto]:
    for node in sequence:
        yield node
        for attribute in node.attribute:
            for subgraph in (attribute.g, *attribute.graphs):
                yield from _nested(subgraph.node)


def _is_readable(node: onnx.NodeProto) -> bool:
    try:
        texts = (node.name, node.domain, node.op_type, *node.input, *node.output)
        return all(isinstance(text, str) and text.isprintable() for text in texts)
    except UnicodeDecodeError:
        return False


def _check_type(value: onnx.ValueInfoProto, name: str) -> None:
    kind = value.type.WhichOneof("value") or "value without a type"
    if kind != "tensor_type":
        raise ModelError(
            f"{name}: {value.name!r} must be a tensor, but it is a {kind.removesuffix('_type')}"
        )
    dtype = value.type.tensor_type.elem_type
    if dtype not in _DTYPES:
        raise ModelError(
            f"{name}: {value.name!r} has elements of type {_dtype(dtype)}, "
            f"which cannot be compiled: {_advice()}"
        )


def _dtype(number: int) -> str:
    if number in TensorProto.DataType.values():
        return str(TensorProto.DataType.Name(number)).lower()
    return str(number)


def _advice() -> str:
    return "use bool, an integer of 8 to 64 bits, float16, bfloat16, float32 or float64"

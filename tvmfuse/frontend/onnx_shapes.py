"""Bind the dynamic extents of an ONNX graph's inputs."""

from __future__ import annotations

import onnx

from tvmfuse.errors import ModelError
from tvmfuse.frontend.model import Shapes


def drop_default_inputs(graph: onnx.GraphProto) -> None:
    """Turn inputs that have an initial value into constants.

    Old files list every weight among the inputs, where a caller could replace it.
    """
    constants = {tensor.name for tensor in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    del graph.input[:]
    graph.input.extend(inputs)


def bind_shapes(graph: onnx.GraphProto, shapes: Shapes, name: str) -> None:
    """Give every input of ``graph`` the shape in ``shapes``.

    A named extent, such as ``batch``, is bound wherever the graph uses it, so
    one input's shape may settle the others'.

    Raises
    ------
    ModelError
        ``shapes`` names no input, contradicts a fixed extent, or leaves one open.
    """
    inputs = {value.name: value for value in graph.input}
    unknown = sorted(set(shapes) - set(inputs))
    if unknown:
        raise ModelError(
            f"{name}: a shape is given for {unknown[0]!r}, which is no input; "
            f"the inputs are {', '.join(map(repr, inputs)) or 'none'}"
        )
    bound: dict[str, set[int]] = {}
    for key, shape in shapes.items():
        _bind(inputs[key], shape, name, bound)
    # Some exporters call every unknown extent "?": a name with two values says nothing.
    symbols = {symbol: values.pop() for symbol, values in bound.items() if len(values) == 1}
    for value in (*graph.input, *graph.output, *graph.value_info):
        for dim in value.type.tensor_type.shape.dim:
            if dim.dim_param in symbols:
                dim.dim_value = symbols[dim.dim_param]
    _check_closed(graph, name)


def forget_inferable_shapes(graph: onnx.GraphProto) -> None:
    """Forget the shapes that follow from the inputs: in real files they may be stale.

    Those of operators outside ONNX's own set stay, since nothing can infer them.
    """
    foreign = {
        output
        for node in graph.node
        if node.domain not in ("", "ai.onnx")
        for output in node.output
    }
    kept = [value for value in graph.value_info if value.name in foreign]
    del graph.value_info[:]
    graph.value_info.extend(kept)
    inputs = {value.name: value for value in graph.input}
    for value in graph.output:
        if value.name in inputs:
            value.type.CopyFrom(inputs[value.name].type)
        elif value.name not in foreign:
            value.type.tensor_type.ClearField("shape")


def _bind(
    value: onnx.ValueInfoProto, shape: tuple[int, ...], name: str, bound: dict[str, set[int]]
) -> None:
    kind = value.type.tensor_type
    if not kind.HasField("shape"):
        for _ in shape:
            kind.shape.dim.add()
        kind.shape.SetInParent()
    if len(kind.shape.dim) != len(shape):
        raise ModelError(
            f"{name}: the input {value.name!r} has {len(kind.shape.dim)} axes, "
            f"but the shape given has {len(shape)}: {_text(shape)}"
        )
    for axis, (dim, extent) in enumerate(zip(kind.shape.dim, shape, strict=True)):
        if _is_open(dim):
            if dim.dim_param:
                bound.setdefault(dim.dim_param, set()).add(extent)
            dim.dim_value = extent
        elif dim.dim_value != extent:
            raise ModelError(
                f"{name}: the input {value.name!r} has the fixed extent {dim.dim_value} "
                f"at axis {axis}, but the shape given has {extent}: {_text(shape)}"
            )


def _check_closed(graph: onnx.GraphProto, name: str) -> None:
    left = [
        value
        for value in graph.input
        if not value.type.tensor_type.HasField("shape")
        or any(_is_open(dim) for dim in value.type.tensor_type.shape.dim)
    ]
    if not left:
        return
    listed = ", ".join(f"{value.name}[{_describe(value)}]" for value in left)
    shape = _describe(left[0], default="1")
    raise ModelError(
        f"{name}: every extent of an input must be known, but these are open: {listed}: "
        f"bind each, for example with --shape '{left[0].name}={shape}' (your extents for 1), "
        f"or in Python with shapes={{{left[0].name!r}: ({shape},)}}"
    )


def _is_open(dim: onnx.TensorShapeProto.Dimension) -> bool:
    # Some exporters write -1 where they mean an unknown extent.
    return dim.WhichOneof("value") != "dim_value" or dim.dim_value < 0


def _describe(value: onnx.ValueInfoProto, default: str = "") -> str:
    if not value.type.tensor_type.HasField("shape"):
        return default or "any rank"
    return ",".join(
        (default or dim.dim_param or "?") if _is_open(dim) else str(dim.dim_value)
        for dim in value.type.tensor_type.shape.dim
    )


def _text(shape: tuple[int, ...]) -> str:
    return ",".join(map(str, shape)) or "a scalar"

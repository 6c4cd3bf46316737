"""Compute when compiling what does not depend on the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import numpy as np

from tvmfuse._tvm import relax, tirx, tvm
from tvmfuse.passes.constants import Array, constant, to_constant
from tvmfuse.passes.outline import renamed
from tvmfuse.passes.rewrite import replaced, tidied, with_functions
from tvmfuse.passes.rules.narrow_weight import is_narrow_weight
from tvmfuse.passes.rules.quantised import is_weight_of_quantised
from tvmfuse.passes.rules.weight_only import is_weight_of_few_rows
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow, functions
from tvmfuse.plan import TensorInfo

# A result may be as large as what it is made of; beyond that it must be small, or a
# broadcast constant would fill memory that the kernel does not need.
_SMALL_BYTES = 64 * 1024
_WIDENING = ("relax.astype", "relax.dequantize")
_WIDENED = 4  # from bytes to float32
# What products take as it is stored.
_KEPT = (is_weight_of_quantised, is_weight_of_few_rows, is_narrow_weight)


def fold_constants(mod: Any) -> Any:
    """Replace every operator whose operands are all constants by its value.

    Layout changes of weights are done by NumPy, which takes milliseconds for what TVM
    would first compile code for; the rest by TVM.
    """
    changed = {}
    for name, function in functions(mod):
        flow = Dataflow.of(name, function)
        values = _known_values(flow)
        if values:
            changed[name] = replaced(flow, function, values)
    return tidied(with_functions(mod, changed)) if changed else mod


def fold_constant(flow: Dataflow, position: int) -> Any:
    """Rewrite one operator of constants as its value; a rule for :mod:`.rewrite`."""
    if not flow.operators[position] or flow.deps[position]:
        return None
    return _known_value(flow, position, {})


def _known_values(flow: Dataflow) -> dict[int, Any]:
    values: dict[int, Any] = {}
    known: dict[Any, Any] = {}
    for position, deps in enumerate(flow.deps):
        if flow.operators[position] and all(dep in values for dep in deps):
            value = _known_value(flow, position, known)
            if value is not None:
                known[flow.var(position)] = values[position] = value
    return values


def _known_value(flow: Dataflow, position: int, known: Mapping[Any, Any]) -> Any:
    """Return the value of one binding as a constant or a shape, None if it is not known."""
    call = renamed(flow.value(position), known) if flow.deps[position] else flow.value(position)
    operator = flow.operators[position]
    if operator in _OF_SHAPES:
        return _OF_SHAPES[operator](call.args[0])
    if not operators.is_pure(operator) or relax.analysis.free_vars(call):
        return None
    if not _is_worth_keeping(call):
        return None
    if any(is_kept(flow, position) for is_kept in _KEPT):
        return None
    arrays = [constant(arg) for arg in operators.tensors(call)]
    if operator in _BY_NUMPY and all(array is not None for array in arrays):
        value = _BY_NUMPY[operator](call, *arrays)
        if value is not None:
            return to_constant(value, operators.dtype(call))
    return _evaluated(call)


def _is_worth_keeping(call: Any) -> bool:
    if not isinstance(call.ty, relax.TensorType):
        return False
    read = sum(_bytes(tensor) for tensor in operators.tensors(call))
    # Bytes that no kernel reads as they are would be widened at every run.
    widest = _WIDENED * read if operators.name(call) in _WIDENING else read
    return _bytes(call) <= max(widest, _SMALL_BYTES)


def _bytes(tensor: Any) -> int:
    return TensorInfo(operators.shape(tensor) or (), operators.dtype(tensor)).n_bytes


def _evaluated(call: Any) -> Any:
    """Let TVM compile and run one call; None where it declines."""
    block = relax.BlockBuilder()
    with block.function("main", []):
        with block.dataflow():
            result = block.emit_output(call)
        block.emit_func_output(result)
    folded = tidied(relax.transform.FoldConstant()(block.get()))["main"]
    values = [folded.body.body, *(b.value for blk in folded.body.blocks for b in blk.bindings)]
    return next((value for value in values if isinstance(value, tvm.ir.GenericConst)), None)


def _static_shape(tensor: Any) -> Any:
    shape = operators.shape(tensor)
    is_static = shape is not None and all(isinstance(extent, int) for extent in shape)
    return relax.ShapeExpr(shape) if is_static else None


def _shape_as_tensor(shape: Any) -> Any:
    if not isinstance(shape, relax.ShapeExpr):
        return None
    if not all(isinstance(extent, tirx.IntImm) for extent in shape.values):
        return None
    return to_constant(np.array([int(extent) for extent in shape.values]), "int64")


def _tensor_as_shape(tensor: Any) -> Any:
    value = constant(tensor)
    return None if value is None else relax.ShapeExpr([int(extent) for extent in value])


_OF_SHAPES: Mapping[str, Callable[[Any], Any]] = MappingProxyType(
    {
        "relax.shape_of": _static_shape,
        "relax.shape_to_tensor": _shape_as_tensor,
        "relax.tensor_to_shape": _tensor_as_shape,
    }
)


def _reshaped(call: Any, array: Array) -> Array:
    return array.reshape([int(extent) for extent in operators.shape(call) or ()])


def _permuted(call: Any, array: Array) -> Array:
    axes = call.attrs.axes
    return array.transpose(None if axes is None else [int(axis) for axis in axes])


def _taken(call: Any, array: Array, indices: Array) -> Array | None:
    """Gather by "clip", which is as good as "fast" for places that exist."""
    if str(call.attrs.mode) not in ("clip", "fast"):
        return None
    axis = None if call.attrs.axis is None else int(call.attrs.axis)
    return np.take(array, indices, axis, mode="clip")


def _divided(call: Any, left: Array, right: Array) -> Array | None:
    """Divide floats; TVM 0.27 refuses a divisor that is the number 0."""
    if not operators.is_float(operators.dtype(call)):
        return None
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.divide(left, right)


_BY_NUMPY: Mapping[str, Callable[..., Array | None]] = MappingProxyType(
    {
        "relax.add": lambda _, left, right: left + right,
        "relax.astype": lambda call, array: array.astype(operators.dtype(call)),
        "relax.divide": _divided,
        "relax.expand_dims": _reshaped,
        "relax.flatten": _reshaped,
        "relax.multiply": lambda _, left, right: left * right,
        "relax.negative": lambda _, array: -array,
        "relax.permute_dims": _permuted,
        "relax.reshape": _reshaped,
        "relax.squeeze": _reshaped,
        "relax.subtract": lambda _, left, right: left - right,
        "relax.take": _taken,
    }
)

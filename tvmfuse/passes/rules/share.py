"""Compute equal values once."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

from tvmfuse._tvm import relax, tvm, tvm_ffi
from tvmfuse.passes.rewrite import replaced, tidied, with_functions
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow, functions

# Larger constants are equal only if they are the same object: comparing weights by
# value would read all of them.
_SMALL_ELEMENTS = 64


def share_equal_values(mod: Any) -> Any:
    """Let a binding that repeats an earlier one of its block read that one instead.

    Two calls are equal if operator, attributes and operands are. One forward sweep
    finds equal chains too, since operands are compared after they were shared.
    """
    changed = {}
    for name, function in functions(mod):
        flow = Dataflow.of(name, function)
        values = _repeated(flow)
        if values:
            changed[name] = replaced(flow, function, values)
    return tidied(with_functions(mod, changed)) if changed else mod


def _repeated(flow: Dataflow) -> dict[int, Any]:
    first: dict[Hashable, list[int]] = {}
    same: dict[Any, Any] = {}
    values = {}
    for position in range(len(flow.bindings)):
        call = flow.value(position)
        is_tuple_access = isinstance(call, relax.TupleGetItem)
        if not (is_tuple_access or operators.is_pure(flow.operators[position])):
            continue
        key = (flow.block_of[position], *_key(call, same))
        equal = (i for i in first.get(key, ()) if _has_equal_attrs(flow.value(i), call))
        earlier = next(equal, None)
        if earlier is None:
            first.setdefault(key, []).append(position)
        else:
            values[position] = same[flow.var(position)] = flow.var(earlier)
    return values


def _key(value: Any, same: Mapping[Any, Any]) -> tuple[Hashable, ...]:
    if isinstance(value, relax.TupleGetItem):
        return ("", _operand(value.tuple_value, same), int(value.index))
    operands = tuple(_operand(arg, same) for arg in value.args)
    return (value.op.name, tvm_ffi.structural_hash(value.attrs), *operands)


def _operand(arg: Any, same: Mapping[Any, Any]) -> Hashable:
    if isinstance(arg, relax.Tuple):
        return tuple(_operand(field, same) for field in arg.fields)
    if isinstance(arg, tvm.ir.GenericConst):
        return _constant_key(arg)
    if isinstance(arg, relax.Var):
        return same.get(arg, arg)
    return str(arg)


def _constant_key(constant: Any) -> Hashable:
    array = constant.value
    size = 1
    for extent in array.shape:
        size *= int(extent)
    if size > _SMALL_ELEMENTS:
        return constant
    return (tuple(array.shape), str(array.dtype), array.numpy().tobytes())


def _has_equal_attrs(left: Any, right: Any) -> bool:
    if isinstance(left, relax.TupleGetItem):
        return True
    return bool(tvm_ffi.structural_equal(left.attrs, right.attrs))

"""Put the body of a group back where it is called."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import relax, tvm
from tvmfuse.passes.outline import renamed, with_blocks


@dataclass(frozen=True)
class Inlined:
    """A function with the calls of one group replaced by the group's body.

    Parameters
    ----------
    function : relax.Function
        The new function.
    origin : Mapping of int to int
        For each binding that came from the group, its position in the planned module.
    """

    function: Any
    origin: Mapping[int, int]


def inline_calls(function: Any, var: Any, group: Any) -> Inlined | None:
    """Inline every call of ``group``, or return None where ``function`` has none."""
    blocks, origin, position = [], {}, 0
    origins = [int(item) for item in group.attrs["tvmfuse.bindings"]]
    for block in function.body.blocks:
        taken_apart = _taken_apart(block.bindings, var)
        rebuilt = []
        for binding in block.bindings:
            if binding.var in taken_apart.obsolete:
                continue
            if not _is_call_of(binding.value, var):
                rebuilt.append(binding)
                continue
            results = taken_apart.results.get(binding.var) or {0: binding.var}
            start = position + len(rebuilt)
            rebuilt += _body(group, binding.value.args, results)
            origin.update({start + i: source for i, source in enumerate(origins)})
        blocks.append(rebuilt)
        position += len(rebuilt)
    return Inlined(with_blocks(function, blocks), origin) if origin else None


@dataclass(frozen=True)
class _TakenApart:
    """The variables that hold the single results of calls that return several."""

    results: Mapping[Any, Mapping[int, Any]]
    obsolete: frozenset[Any]


def _taken_apart(bindings: Sequence[Any], var: Any) -> _TakenApart:
    results: dict[Any, dict[int, Any]] = {}
    obsolete = set()
    for binding in bindings:
        value = binding.value
        if _is_call_of(value, var) and isinstance(value.ty, relax.TupleType):
            results[binding.var] = {}
        elif isinstance(value, relax.TupleGetItem) and value.tuple_value in results:
            results[value.tuple_value][int(value.index)] = binding.var
            obsolete.add(binding.var)
    return _TakenApart(results, frozenset(obsolete))


def _body(group: Any, args: Sequence[Any], results: Mapping[int, Any]) -> list[Any]:
    """Return the group's bindings with the caller's arguments and result variables."""
    names = dict(zip(group.params, args, strict=True))
    for param, arg in zip(group.params, args, strict=True):
        names.update(_sizes(param, arg))
    result = group.body.body
    outputs = result.fields if isinstance(result, relax.Tuple) else [result]
    names.update({outputs[index]: var for index, var in results.items()})
    bindings = []
    for binding in group.body.blocks[0].bindings:
        value = renamed(binding.value, names)
        if binding.var not in names:
            names[binding.var] = relax.DataflowVar(binding.var.name, renamed(binding.var.ty, names))
        bindings.append(relax.VarBinding(names[binding.var], value))
    return bindings


def _sizes(param: Any, arg: Any) -> dict[Any, Any]:
    """Map the symbolic sizes in a parameter's shape to the argument's."""
    if not isinstance(param.ty, relax.TensorType | relax.ShapeType):
        return {}
    inner, outer = _extents(param.ty), _extents(arg.ty)
    return {
        size: extent
        for size, extent in zip(inner, outer, strict=True)
        if isinstance(size, relax.Var)
    }


def _extents(ty: Any) -> Any:
    return ty.values if isinstance(ty, relax.ShapeType) else ty.shape.values


def _is_call_of(value: Any, var: Any) -> bool:
    return isinstance(value, tvm.ir.Call) and var.same_as(value.op)

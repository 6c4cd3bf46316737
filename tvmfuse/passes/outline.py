"""Move sets of bindings of a function into private functions of their own."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import relax, tvm, tvm_ffi
from tvmfuse.patterns.dataflow import Dataflow, constants

# Enough to tell groups apart at a glance; the rest is in their bodies.
_NAMED_OPERATORS = 4
_NODE_CHARACTERS = 32  # the end of a path of modules tells most


@dataclass(frozen=True)
class Unit:
    """Bindings that stay together: a group, or one binding that is left as it is.

    Parameters
    ----------
    members : tuple of int
        Positions in the function, ascending.
    pattern, family : str
        What the group is; both "" for a binding that stays outside.
    origin : tuple of int
        Positions of the members in the module that was planned.
    copies : tuple of int
        The members that it computes for itself only; they are in other units, too.
    """

    members: tuple[int, ...]
    pattern: str = ""
    family: str = ""
    origin: tuple[int, ...] = ()
    copies: tuple[int, ...] = ()

    @property
    def provides(self) -> tuple[int, ...]:
        """The members that are in no other unit."""
        return tuple(i for i in self.members if i not in self.copies)


class Outliner:
    """Collects the functions of a module that is being rewritten."""

    def __init__(self, mod: Any) -> None:
        self._mod = mod
        self._functions: dict[Any, Any] = dict(mod.functions.items())
        self._names = {str(var.name_hint) for var in self._functions}

    def replace(self, flow: Dataflow, units: Sequence[Unit]) -> None:
        """Rewrite one function so that each group in ``units`` is called.

        Parameters
        ----------
        flow : Dataflow
            The function.
        units : Sequence[Unit]
            All its bindings, each provided by one unit, in an order that respects dependencies.
        """
        var = self._mod.get_global_var(flow.name)
        blocks: list[list[Any]] = [[] for _ in self._functions[var].body.blocks]
        for unit in units:
            block = blocks[flow.block_of[unit.members[0]]]
            if unit.pattern:
                block += self._outlined(flow, unit)
            else:
                block += [flow.bindings[i] for i in unit.members]
        self._functions[var] = with_blocks(self._functions[var], blocks)

    def remove(self, var: Any) -> None:
        """Drop a function that nothing calls any more."""
        del self._functions[var]

    def module(self) -> Any:
        """Return the rewritten module, well formed."""
        module = tvm.IRModule(self._functions, attrs=self._mod.attrs)
        module = relax.transform.Normalize()(module)
        relax.analysis.well_formed(module)
        return module

    def _outlined(self, flow: Dataflow, unit: Unit) -> list[Any]:
        """Return the bindings that call the group and take its results apart."""
        left = [i for i in flow.outputs(unit.members) if i not in unit.copies]
        outputs = left or unit.members[-1:]
        function, args = _group_function(flow, unit, outputs)
        var = tvm.ir.GlobalVar(self._unused_name(_group_name(flow, unit)))
        relax.expr._update_type(var, function.ty)
        self._functions[var] = function
        bindings, args = _bound(args)
        call = relax.BlockBuilder().normalize(relax.Call(var, args))
        if len(outputs) == 1:
            return [*bindings, relax.VarBinding(flow.var(outputs[0]), call)]
        results = relax.DataflowVar(var.name_hint, call.ty)
        bindings.append(relax.VarBinding(results, call))
        for i, output in enumerate(outputs):
            bindings.append(relax.VarBinding(flow.var(output), relax.TupleGetItem(results, i)))
        return bindings

    def _unused_name(self, wanted: str) -> str:
        name, suffix = wanted, 1
        while name in self._names:
            name, suffix = f"{wanted}_{suffix}", suffix + 1
        self._names.add(name)
        return name


def with_blocks(function: Any, blocks: Sequence[list[Any]]) -> Any:
    """Return ``function`` with other bindings in its blocks."""
    rebuilt = [
        type(old)(bindings) for old, bindings in zip(function.body.blocks, blocks, strict=True)
    ]
    body = relax.SeqExpr(rebuilt, function.body.body)
    return relax.Function(
        function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
    )


def renamed(expr: Any, names: Mapping[Any, Any]) -> Any:
    """Return ``expr`` with variables and constants replaced, inside types too."""

    def new(old: Any) -> Any:
        return names.get(old, old)

    return tvm_ffi.structural_map(
        expr, ((relax.Var, new), (tvm.ir.GenericConst, new)), order="post"
    )


def _bound(args: Sequence[Any]) -> tuple[list[Any], list[Any]]:
    """Bind arguments that are fields of a tuple; return the bindings and what to pass."""
    bindings, passed = [], []
    for arg in args:
        if isinstance(arg, relax.TupleGetItem):
            name = f"{arg.tuple_value.name}_{arg.index}"
            bindings.append(relax.VarBinding(relax.DataflowVar(name, arg.ty), arg))
            arg = bindings[-1].var
        passed.append(arg)
    return bindings, passed


def _group_function(flow: Dataflow, unit: Unit, outputs: Sequence[int]) -> tuple[Any, list[Any]]:
    """Build the function of a group and the arguments to call it with.

    Constants become parameters: FuseTIR accepts none inside, and one weight stays one
    weight however many groups read it. A tuple is handed over field by field, so that
    every parameter is a tensor.
    """
    args: list[Any] = []
    params: list[Any] = []
    names: dict[Any, Any] = {}
    for value in (*outside_values(flow, unit.members), *_constants(flow, unit.members)):
        is_tuple = isinstance(value.ty, relax.TupleType)
        fields = _tuple_fields(value) if is_tuple else [value]
        fresh = [relax.Var(_param_name(f, len(args) + i), f.ty) for i, f in enumerate(fields)]
        names[value] = relax.Tuple(fresh) if is_tuple else fresh[0]
        args += fields
        params += fresh
    sizes = _undefined_sizes(flow, unit.members, params)
    if sizes:
        args.append(relax.ShapeExpr(sizes))
        params.append(relax.Var("sizes", relax.ShapeType(sizes)))
    bindings = []
    for member in unit.members:
        old = flow.var(member)
        kind = relax.Var if member in outputs else relax.DataflowVar
        names[old] = kind(old.name, old.ty)
        bindings.append(relax.VarBinding(names[old], renamed(flow.value(member), names)))
    results = [names[flow.var(output)] for output in outputs]
    result = results[0] if len(results) == 1 else relax.Tuple(results)
    body = relax.SeqExpr([relax.DataflowBlock(bindings)], result)
    attrs = {
        "Primitive": 1,
        "tvmfuse.pattern": unit.pattern,
        "tvmfuse.family": unit.family,
        "tvmfuse.bindings": list(unit.origin),
    }
    function = relax.Function(
        params, body, result.ty, is_pure=True, attrs=tvm.ir.make_node("ir.DictAttrs", **attrs)
    )
    return relax.utils.copy_with_new_vars(function), args


def outside_values(flow: Dataflow, members: Sequence[int]) -> list[Any]:
    """Return the variables that the members read and do not define, in reading order."""
    made = {flow.var(member) for member in members}
    read = (var for i in members for var in relax.analysis.free_vars(flow.value(i)))
    return list(dict.fromkeys(var for var in read if var not in made and not _is_size(var)))


def _constants(flow: Dataflow, members: Sequence[int]) -> list[Any]:
    """Return the constants that the members read, each once, in reading order."""
    return list(dict.fromkeys(c for i in members for c in constants(flow.value(i))))


def _undefined_sizes(flow: Dataflow, members: Sequence[int], params: Sequence[Any]) -> list[Any]:
    """Return the symbolic sizes that no parameter's shape defines by itself."""
    defined = {
        size for param in params for size in relax.analysis.definable_tir_vars_in_type(param.ty)
    }
    needed: dict[Any, None] = {}
    for member in members:
        read = [var for var in relax.analysis.free_vars(flow.value(member)) if _is_size(var)]
        for size in [*read, *relax.analysis.tir_vars_in_type(flow.var(member).ty)]:
            if size not in defined:
                needed[size] = None
    return list(needed)


def _tuple_fields(value: Any) -> list[Any]:
    block = relax.BlockBuilder()
    return [block.normalize(relax.TupleGetItem(value, i)) for i in range(len(value.ty.fields))]


def _is_size(var: Any) -> bool:
    return isinstance(var.ty, tvm.ir.PrimType)


def _param_name(arg: Any, position: int) -> str:
    if isinstance(arg, relax.Var):
        return str(arg.name)
    return f"constant{position}" if isinstance(arg, tvm.ir.GenericConst) else f"field{position}"


def _group_name(flow: Dataflow, unit: Unit) -> str:
    """Name a group by its operators and its first node: ``conv2d_add_relu_layer1_conv1``.

    Where the model names no nodes, by its first binding: ``conv2d_add_relu_3``.
    """
    names = [flow.operators[i].rpartition(".")[2] for i in unit.members if flow.operators[i]]
    shown = names[:_NAMED_OPERATORS]
    if len(names) > len(shown):
        shown.append(f"and_{len(names) - len(shown)}_more")
    node = re.sub(r"\W+", "_", flow.labels[unit.members[0]], flags=re.ASCII).strip("_")
    has_node = node and flow.labels[unit.members[0]] != str(flow.var(unit.members[0]).name)
    return "_".join([*shown, node[-_NODE_CHARACTERS:] if has_node else str(unit.origin[0])])

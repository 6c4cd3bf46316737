"""Turn each group of operators into one S-TIR function."""

from __future__ import annotations

from collections.abc import Mapping, Set
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Any

from tvmfuse._tvm import relax, tvm, tvm_ffi
from tvmfuse.errors import LoweringError
from tvmfuse.kernels.legalize import APPROXIMATED
from tvmfuse.passes.codegen import FAILURES, one_line
from tvmfuse.passes.emit import Emit, emitted
from tvmfuse.passes.partition import inline_group
from tvmfuse.plan import Rejection

Rules = Mapping[str, Any]  # operator -> legalisation, see kernels/legalize.py

# Wherever a name is used, TVM's LLVM code generator analyses all that it stands for. Four
# functions within one another take it half a minute, and each more twenty times as long.
_MAX_NESTING = 3


@dataclass(frozen=True)
class Origin:
    """What a kernel was made of.

    Parameters
    ----------
    pattern : str
        Pattern of the group.
    operators : tuple of str
        Operators in it.
    places : tuple of tuple of int
        Bindings of every equal group that shares the kernel.
    """

    pattern: str
    operators: tuple[str, ...]
    places: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Lowered:
    """A module whose groups are kernels.

    Parameters
    ----------
    module : tvm.IRModule
        Calls kernels where it called groups.
    origins : Mapping of str to Origin
        For every kernel, by name, the group that it was first made of.
    rejections : tuple of Rejection
        Groups that were dissolved into their operators, and why.
    """

    module: Any
    origins: Mapping[str, Origin]
    rejections: tuple[Rejection, ...]


def lower(
    mod: Any, target: Any, rules: Rules, *, own: Mapping[str, Emit] = MappingProxyType({})
) -> Lowered:
    """Lower every group of a partitioned module; equal groups share one kernel.

    Parameters
    ----------
    mod : tvm.IRModule
        A partitioned module.
    target : tvm.target.Target
        The device.
    rules : Mapping
        Legalisation by operator that goes before TVM's own.
    own : Mapping of str to callable
        By the name of a pattern, what writes the kernels of its groups, see :mod:`emit`.

    Returns
    -------
    Lowered
        A group that cannot be lowered is dissolved, and its operators lowered one by one.

    Raises
    ------
    LoweringError
        A single operator cannot be lowered.
    """
    rejections: list[Rejection] = []
    while True:
        kernels = _Kernels(mod, target, rules, own)
        try:
            return kernels.lower(tuple(rejections))
        except _Failed as failed:
            group = mod[failed.group]
            bindings = _bindings(group)
            pattern = str(group.attrs["tvmfuse.pattern"])
            if len(group.body.blocks[0].bindings) == 1:
                name = kernels.origin(group).operators
                raise LoweringError(
                    f"operator {', '.join(name)} cannot be lowered for {target.kind.name}: "
                    f"{failed.reason}"
                ) from failed
            rejections.append(Rejection(pattern, "main", bindings, "lower", failed.reason))
            mod = inline_group(mod, failed.group)


class _Failed(Exception):  # noqa: N818 - caught where the group is dissolved
    def __init__(self, group: str, reason: str) -> None:
        super().__init__(reason)
        self.group, self.reason = group, reason


class _Kernels:
    """Lowers the groups of one module, each distinct one once."""

    def __init__(self, mod: Any, target: Any, rules: Rules, own: Mapping[str, Emit]) -> None:
        self._mod = mod
        self._own = own
        self._target = target
        self._rules = rules
        self._pipeline = tvm.transform.Sequential(
            [relax.transform.LegalizeOps(dict(rules)), relax.transform.FuseTIR()]
        )
        self._seen: dict[int, list[tuple[Any, Any]]] = {}
        self._origins: dict[str, Origin] = {}
        self._functions: dict[Any, Any] = {}

    def lower(self, rejections: tuple[Rejection, ...]) -> Lowered:
        kernels = {}
        for var, function in self._mod.functions.items():
            if _is_group(function):
                kernels[var] = self._kernel(var, function)
            elif isinstance(function, relax.Function):
                self._functions[var] = function
        mod = tvm.IRModule(self._functions, attrs=self._mod.attrs)
        for var, function in list(self._mod.functions.items()):
            if isinstance(function, relax.Function) and not _is_group(function):
                mod.update_func(var, _Calls(mod, kernels).visit_expr(function))
            elif not _is_group(function):
                mod[var] = function
        mod = relax.transform.DeadCodeElimination()(relax.transform.Normalize()(mod))
        relax.analysis.well_formed(mod)
        return Lowered(mod, self._origins, rejections)

    def _kernel(self, var: Any, group: Any) -> Any:
        """Return the global variable of the kernel of ``group``."""
        plain = group.without_attr("tvmfuse.bindings")
        known = self._seen.setdefault(tvm_ffi.structural_hash(plain), [])
        for other, kernel in known:
            if tvm_ffi.structural_equal(other, plain):
                name = str(kernel.name_hint)
                shared = self._origins[name]
                places = (*shared.places, _bindings(group))
                self._origins[name] = replace(shared, places=places)
                return kernel
        prim = self._lowered(var, group)
        kernel = relax.BlockBuilder().add_func(prim, f"{var.name_hint}_kernel")
        self._functions[kernel] = prim
        self._origins[str(kernel.name_hint)] = self.origin(group)
        known.append((plain, kernel))
        return kernel

    def _lowered(self, var: Any, group: Any) -> Any:
        name = str(var.name_hint)
        if _nesting(group, APPROXIMATED & set(self._rules)) > _MAX_NESTING:
            raise _Failed(name, f"more than {_MAX_NESTING} approximated functions of one another")
        emit = self._own.get(str(group.attrs["tvmfuse.pattern"]))
        try:
            if emit is not None and (prim := emitted(emit, group)) is not None:
                return prim.without_attr("global_symbol")
            with self._target:
                mod = self._pipeline(_alone(self._mod, var, group))
        except FAILURES as error:
            raise _Failed(name, one_line(error)) from error
        (call,) = [b.value for b in mod["main"].body.blocks[0].bindings]
        if not isinstance(call, relax.Call) or str(call.op.name) != "relax.call_tir":
            raise _Failed(name, "an operator in it has no lowering")
        return mod[call.args[0]].without_attr("global_symbol")

    def origin(self, group: Any) -> Origin:
        """Describe what a group is made of."""
        return Origin(
            str(group.attrs["tvmfuse.pattern"]),
            tuple(_operator(binding.value) for binding in group.body.blocks[0].bindings),
            (_bindings(group),),
        )


@relax.expr_functor.mutator
class _Calls(relax.PyExprMutator):
    """Replaces calls of groups by calls of their kernels."""

    def __init__(self, mod: Any, kernels: Mapping[Any, Any]) -> None:
        super().__init__(mod)
        self._kernels = kernels

    def visit_call_(self, call: Any) -> Any:
        call = self.visit_expr_post_order(call)
        kernel = self._kernels.get(call.op) if isinstance(call.op, tvm.ir.GlobalVar) else None
        if kernel is None:
            return call
        fields: list[Any] = []
        for arg in call.args:  # a kernel takes symbolic sizes as scalars
            fields += arg.values if isinstance(arg, relax.ShapeExpr) else [arg]
        out = list(call.ty.fields) if isinstance(call.ty, relax.TupleType) else call.ty
        return relax.call_tir(kernel, relax.Tuple(fields), out)


def _alone(mod: Any, var: Any, group: Any) -> Any:
    """Return a module that holds one group, the kernels it calls, and a call of it."""
    functions = {var: group}
    for binding in group.body.blocks[0].bindings:
        args = getattr(binding.value, "args", [])
        functions.update({a: mod[a] for a in args if isinstance(a, tvm.ir.GlobalVar)})
    params = [relax.Var(str(param.name), param.ty) for param in group.params]
    call = relax.BlockBuilder().normalize(relax.Call(var, params))
    result = relax.Var("result", call.ty)
    body = relax.SeqExpr([relax.DataflowBlock([relax.VarBinding(result, call)])], result)
    main = relax.Function(params, body, call.ty, is_pure=True)
    functions[tvm.ir.GlobalVar("main")] = main.with_attr("global_symbol", "main")
    return relax.transform.Normalize()(tvm.IRModule(functions))


def _nesting(group: Any, operators: Set[str]) -> int:
    """Return how many of ``operators`` are at most applied to one another's results."""
    depths: dict[Any, int] = {}
    for binding in group.body.blocks[0].bindings:
        below = (depths.get(var, 0) for var in relax.analysis.free_vars(binding.value))
        name = str(getattr(getattr(binding.value, "op", None), "name", ""))
        depths[binding.var] = max(below, default=0) + (name in operators)
    return max(depths.values(), default=0)


def _operator(value: Any) -> str:
    """Return the operator that a binding calls; "" where it takes a tuple apart."""
    return str(getattr(getattr(value, "op", None), "name", ""))


def _is_group(function: Any) -> bool:
    return isinstance(function, relax.Function) and "Primitive" in (function.attrs or {})


def _bindings(group: Any) -> tuple[int, ...]:
    return tuple(int(i) for i in group.attrs.get("tvmfuse.bindings", ()))

"""Give every tensor of a graph its form, in one walk from inputs to outputs.

As in ONNX Runtime's NCHWc transformer, blocking spreads forward: a convolution
asks for blocks and makes blocks, and what follows it works on blocks for as long
as it can. A tensor is converted only where somebody needs it in another form, at
most once per form.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import relax, tvm, tvm_ffi
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.convert import arranging, unblocking
from tvmfuse.passes.layout.forms import PLAIN, Blocked, Form, Trailing
from tvmfuse.passes.layout.narrow import stored_weights
from tvmfuse.passes.layout.planes import RULES as PLANE_RULES
from tvmfuse.passes.layout.planes import copy_cost, cost_of
from tvmfuse.passes.layout.regions import Regions
from tvmfuse.passes.layout.rewrite import (
    NotRewritable,
    Rewriter,
    Rewritten,
    operator,
    shape_of,
)
from tvmfuse.passes.layout.rules import ANCHORS, FAMILY_RULES, GROUP_RULES, RULES
from tvmfuse.passes.partition import inline_group
from tvmfuse.plan import Rejection

Var = Any  # relax.Var
Expr = Any  # relax.Expr


@dataclass(frozen=True)
class Laid:
    """A module whose tensors have their forms, and the groups that were dissolved for it."""

    module: Any
    rejections: tuple[Rejection, ...] = ()


def layout(mod: Any, machine: Machine, *, own: Collection[str] = ()) -> Laid:
    """Rewrite the groups of a partitioned module to blocked channels and packed weights.

    Parameters
    ----------
    mod : tvm.IRModule
        A module whose operators all stand in groups.
    machine : Machine
        The device.
    own : collection of str
        Patterns that write their kernels themselves, for plain tensors.

    Returns
    -------
    Laid
        The same computation; inputs and outputs keep their plain form. Where what follows
        a convolution has no form in blocks, their group is dissolved: a convolution of
        plain tensors would cost far more than the fusion saves.
    """
    rejections: list[Rejection] = []
    in_planes: frozenset[str] = frozenset()
    while True:
        walk = _Walk(mod, machine, own, in_planes)
        for var, function in mod.functions.items():
            if isinstance(function, relax.Function) and "Primitive" not in (function.attrs or {}):
                walk.function(var, function)
        dear = walk.regions.dearer_in_blocks() - in_planes
        if not walk.refusals and not dear:
            return Laid(walk.module(), tuple(rejections))
        in_planes |= dear
        for name, reason in walk.refusals.items():
            rejections.append(_rejection(mod[name], reason))
            mod = inline_group(mod, name)


class _Walk:
    def __init__(
        self, mod: Any, machine: Machine, own: Collection[str], in_planes: frozenset[str]
    ) -> None:
        self._mod = mod
        self._machine = machine
        self._own = frozenset(own)
        self._in_planes = in_planes
        self.regions = Regions()
        self._functions: dict[Any, Any] = dict(mod.functions.items())
        self._names = {str(var.name_hint) for var in self._functions}
        self._constants: dict[tuple[Any, Form], Any] = {}
        self._kernels: dict[int, list[tuple[Any, Any]]] = {}
        self._forms: dict[Var, dict[Form, Var]] = {}
        self._tuples: dict[Var, tuple[Form, ...]] = {}
        self._bindings: list[Any] = []
        # Groups whose convolution works on blocks though the whole does not, and why.
        self.refusals: dict[str, str] = {}

    def module(self) -> Any:
        mod = tvm.IRModule(self._functions, attrs=self._mod.attrs)
        mod = relax.transform.Normalize()(mod)
        mod = relax.transform.DeadCodeElimination()(mod)
        relax.analysis.well_formed(mod)
        return mod

    def function(self, var: Any, function: Any) -> None:
        """Rewrite one function."""
        if not isinstance(function.body, relax.SeqExpr):
            return
        blocks = [self._block(block) for block in function.body.blocks]
        body = relax.SeqExpr(blocks, function.body.body)
        self._functions[var] = relax.Function(
            function.params, body, function.ret_ty, function.is_pure, function.attrs, function.span
        )

    def _block(self, block: Any) -> Any:
        if not isinstance(block, relax.DataflowBlock):
            return block
        self._bindings = []
        for binding in block.bindings:
            self._binding(binding)
        for binding in block.bindings:
            if not isinstance(binding.var, relax.DataflowVar):
                self._require(binding.var, PLAIN)
        return relax.DataflowBlock(self._bindings)

    def _binding(self, binding: Any) -> None:
        var, value = binding.var, binding.value
        if isinstance(value, relax.TupleGetItem) and value.tuple_value in self._tuples:
            form = self._tuples[value.tuple_value][int(value.index)]
            self.regions.join(var, value.tuple_value)
            self._bind(var, self._normal(value), form)
            return
        rewritten = self._rewritten(value)
        if rewritten is None:
            for used in relax.analysis.free_vars(value):
                self._require(used, PLAIN)
            self._bindings.append(binding)
            return
        self._call(var, value, rewritten)

    def _rewritten(self, value: Expr) -> Rewritten | None:
        """Return the group that ``value`` calls in new forms, where that serves."""
        if not (isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.GlobalVar)):
            return None
        function = self._functions[value.op]
        if not isinstance(function, relax.Function) or "Primitive" not in (function.attrs or {}):
            return None
        if function.attrs["tvmfuse.pattern"] in self._own:
            return None
        names = {operator(binding.value) for binding in function.body.blocks[0].bindings}
        if not (names & ANCHORS or any(self._is_blocked(arg) for arg in value.args)):
            return None
        constants = _constants(value)
        in_blocks = frozenset(i for i, arg in enumerate(value.args) if self._is_blocked(arg))
        name, family = str(value.op.name_hint), str(function.attrs["tvmfuse.family"])
        stored, skipped = stored_weights(function)
        whole, own = GROUP_RULES.get(family), FAMILY_RULES.get(family)
        tried = (PLANE_RULES, RULES) if name in self._in_planes else (RULES,)
        for rules in tried if own is None else (own,):
            rewriter = Rewriter(
                function,
                constants,
                in_blocks,
                self._machine,
                self._add_kernel,
                stored_weights=stored,
                skipped=skipped,
            )
            try:
                return rewriter.replace(whole) if whole is not None else rewriter.run(rules)
            except NotRewritable as refusal:
                if own is not None or (names & ANCHORS and rewriter.has_blocks):
                    self.refusals[name] = str(refusal)
        return None

    def _call(self, var: Var, value: Expr, rewritten: Rewritten) -> None:
        self._charge(var, value, rewritten)
        name = self._new_name(str(value.op.name_hint))
        group = self._add(name, rewritten.function)
        args = [self._argument(value.args[i], form) for i, form in rewritten.args]
        call = self._normal(relax.Call(group, args))
        if len(rewritten.forms) == 1:
            self._bind(var, call, rewritten.forms[0])
            return
        results = relax.DataflowVar(name, call.ty)
        self._bindings.append(relax.VarBinding(results, call))
        # Later tuple accesses read the new tuple through the old variable's entry.
        self._forms[var] = {PLAIN: results}
        self._tuples[var] = rewritten.forms

    def _charge(self, var: Var, value: Expr, rewritten: Rewritten) -> None:
        """Note which tensors lie in blocks together because of a group, and what that costs."""
        if not any(isinstance(form, Blocked) for form in rewritten.forms):
            return
        args = (value.args[i] for i, form in rewritten.args if isinstance(form, Blocked))
        taken = [arg for arg in args if isinstance(arg, relax.Var)]
        cost = cost_of(self._functions[value.op], _constants(value), self._machine)
        self.regions.add(str(value.op.name_hint), var, taken, cost)

    def _bind(self, var: Var, expr: Expr, form: Form) -> None:
        """Bind the result that ``var`` names; it keeps its variable where it is plain."""
        if isinstance(expr, relax.TupleGetItem) and expr.tuple_value in self._forms:
            renamed = self._forms[expr.tuple_value][PLAIN]
            expr = self._normal(relax.TupleGetItem(renamed, expr.index))
        if form == PLAIN:
            self._bindings.append(relax.VarBinding(var, expr))
            return
        fresh = relax.DataflowVar(str(var.name), expr.ty)
        self._bindings.append(relax.VarBinding(fresh, expr))
        self._forms[var] = {form: fresh}

    def _argument(self, arg: Expr, form: Form) -> Expr:
        if not isinstance(arg, tvm.ir.GenericConst):
            return self._require(arg, form)
        if form == PLAIN:
            return arg
        key = (arg, form)
        if key not in self._constants:
            self._constants[key] = relax.const(form.arrange(arg.value.numpy()))
        return self._constants[key]

    def _require(self, var: Var, form: Form) -> Var:
        """Return the variable that holds ``var`` in ``form``, converting where needed."""
        known = self._forms.setdefault(var, {PLAIN: var})
        if form in known:
            return known[form]
        if form == PLAIN:
            (source, found) = next((v, f) for f, v in known.items() if isinstance(f, Blocked))
            expr = self._convert(source, shape_of(var), found, to_plain=True)
            self.regions.charge(var, copy_cost(shape_of(var)))
            self._bindings.append(relax.VarBinding(var, expr))
            known[PLAIN] = var
            return var
        plain = self._require(var, PLAIN)
        if isinstance(form, Trailing):
            expr = self._normal(relax.op.reshape(plain, form.shape(shape_of(var))))
        else:
            expr = self._convert(plain, shape_of(var), form, to_plain=False)
            self.regions.charge(var, copy_cost(shape_of(var)))
        fresh = relax.DataflowVar(str(var.name), expr.ty)
        self._bindings.append(relax.VarBinding(fresh, expr))
        known[form] = fresh
        return fresh

    def _convert(self, source: Var, shape: tuple[int, ...], form: Form, *, to_plain: bool) -> Expr:
        """Return a call that copies a tensor of plain ``shape`` between two forms."""
        emit = unblocking(shape) if to_plain else arranging(shape, form)
        prim, _, out_ty = relax.utils.gen_call_tir_inputs(emit, source)
        kernel = self._add_kernel(prim, "layout")
        param = relax.Var("x", source.ty)
        call = self._normal(relax.call_tir(kernel, relax.Tuple([param]), out_ty))
        result = relax.Var("y", call.ty)
        body = relax.SeqExpr([relax.DataflowBlock([relax.VarBinding(result, call)])], result)
        group = relax.Function([param], body, result.ty, is_pure=True, attrs=_layout_attrs())
        name = self._new_name("from_blocked" if to_plain else "to_blocked")
        return self._normal(relax.Call(self._add(name, group), [source]))

    def _is_blocked(self, arg: Expr) -> bool:
        forms: Mapping[Form, Var] = self._forms.get(arg, {}) if isinstance(arg, relax.Var) else {}
        return any(isinstance(form, Blocked) for form in forms)

    def _add_kernel(self, prim: Any, name: str) -> Any:
        """Add a function in TIR, unless an equal one is there."""
        prim = prim.without_attr("global_symbol")
        known = self._kernels.setdefault(tvm_ffi.structural_hash(prim), [])
        for other, var in known:
            if tvm_ffi.structural_equal(other, prim):
                return var
        var = relax.BlockBuilder().add_func(prim, self._new_name(name))  # typed, for call_tir
        self._functions[var] = prim
        known.append((prim, var))
        return var

    def _add(self, name: str, function: Any) -> Any:
        var = tvm.ir.GlobalVar(name)
        relax.expr._update_type(var, function.ty)
        self._functions[var] = function
        return var

    def _normal(self, expr: Expr) -> Expr:
        return relax.BlockBuilder().normalize(expr)

    def _new_name(self, wanted: str) -> str:
        name, suffix = wanted, 1
        while name in self._names:
            name, suffix = f"{wanted}_{suffix}", suffix + 1
        self._names.add(name)
        return name


def _constants(call: Any) -> frozenset[int]:
    """Return the positions of the arguments that are known when compiling."""
    return frozenset(i for i, arg in enumerate(call.args) if isinstance(arg, tvm.ir.GenericConst))


def _rejection(group: Any, reason: str) -> Rejection:
    bindings = tuple(int(i) for i in group.attrs.get("tvmfuse.bindings", ()))
    return Rejection(str(group.attrs["tvmfuse.pattern"]), "main", bindings, "lower", reason)


def _layout_attrs() -> Any:
    attrs = {"Primitive": 1, "tvmfuse.pattern": "layout", "tvmfuse.family": "injective"}
    return tvm.ir.make_node("ir.DictAttrs", **attrs)

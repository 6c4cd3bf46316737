"""Rewrite one group so that its operators work on tensors in other forms."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvmfuse._tvm import relax, tvm
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.forms import PLAIN, Blocked, Form

Expr = Any  # relax.Expr
Var = Any  # relax.Var


class NotRewritable(Exception):  # noqa: N818 - a refusal, not an error
    """A group, or an operator in it, has no form but the plain one here."""


@dataclass(frozen=True)
class Rewritten:
    """A group in new forms.

    Parameters
    ----------
    function : relax.Function
        Its new body.
    args : tuple
        For every new parameter: the position of the old one, and the form it wants.
    forms : tuple of Form
        Form of every result.
    """

    function: Any
    args: tuple[tuple[int, Form], ...]
    forms: tuple[Form, ...]


PROLOGUES = ("relax.nn.layer_norm", "relax.nn.rms_norm")
"""Operators on rows that a product of the same group takes in: it computes them itself."""

Rule = Callable[["Rewriter", Any, Var], tuple[Expr, Form]]
GroupRule = Callable[["Rewriter"], tuple[Expr, Form]]


@dataclass
class Rewriter:
    """Walks a group, and hands each operator to its rule.

    Parameters
    ----------
    function : relax.Function
        The group as :mod:`partition` made it.
    constants : frozenset of int
        Positions of the parameters whose argument is a constant.
    in_blocks : frozenset of int
        Positions of those whose argument lies in channel blocks already.
    machine : Machine
        The device.
    add_kernel : callable
        Adds a kernel to the module, by a name that is wished for, and returns its
        global variable; equal kernels share one.
    stored_weights : Mapping
        By the weight of a product, the constants that it takes in instead.
    skipped : frozenset
        Variables that only make such weights.
    """

    function: Any
    constants: frozenset[int]
    in_blocks: frozenset[int]
    machine: Machine
    add_kernel: Callable[[Any, str], Any]
    stored_weights: Mapping[Var, tuple[Expr, Expr, Expr]] = field(default_factory=dict)
    skipped: frozenset[Var] = frozenset()
    _params: dict[tuple[int, Form], Var] = field(default_factory=dict)
    _values: dict[Var, tuple[Var, Form]] = field(default_factory=dict)
    _bindings: list[Any] = field(default_factory=list)
    _prologues: dict[Var, Any] = field(default_factory=dict)

    def run(self, rules: Mapping[str, Rule]) -> Rewritten:
        """Rewrite the group.

        Raises
        ------
        NotRewritable
            An operator has no rule, or its rule refused.
        """
        results = self.results
        for binding in self.function.body.blocks[0].bindings:
            call = binding.value
            if binding.var in self.skipped:
                continue
            if operator(call) in PROLOGUES and self._feeds_products_only(binding.var):
                self._prologues[binding.var] = call
                continue
            rule = rules.get(operator(call), plainly)
            expr, form = rule(self, call, binding.var)
            kind = type(binding.var)
            self._values[binding.var] = (self.emit(expr, str(binding.var.name), kind=kind), form)
        if not all(result in self._values for result in results):
            raise NotRewritable("a result is not computed here")
        return self._rewritten(results)

    def replace(self, rule: GroupRule) -> Rewritten:
        """Rewrite the group as a whole, by one expression: its result, or all of them in order.

        Raises
        ------
        NotRewritable
            The rule refused.
        """
        expr, form = rule(self)
        whole = self.emit(expr, str(self.results[0].name), kind=relax.Var)
        return self._finished(whole, [form] * len(self.results))

    @property
    def results(self) -> list[Var]:
        """The variables that the group returns."""
        value = self.function.body.body
        return list(value.fields) if isinstance(value, relax.Tuple) else [value]

    def _rewritten(self, results: Sequence[Var]) -> Rewritten:
        outputs = [self._values[result] for result in results]
        variables = [var for var, _ in outputs]
        value = variables[0] if len(variables) == 1 else relax.Tuple(variables)
        return self._finished(value, [form for _, form in outputs])

    def _finished(self, value: Expr, forms: Sequence[Form]) -> Rewritten:
        """Return the group that returns ``value``, whose results have these forms."""
        self._drop_unread(set(relax.analysis.free_vars(value)))
        value = relax.BlockBuilder().normalize(value)
        function = relax.Function(
            list(self._params.values()),
            relax.SeqExpr([relax.DataflowBlock(self._bindings)], value),
            value.ty,
            is_pure=True,
            attrs=self.function.attrs,
        )
        return Rewritten(
            relax.utils.copy_with_new_vars(function),
            tuple(self._params),
            tuple(forms),
        )

    def _drop_unread(self, read: set[Any]) -> None:
        """Drop what a rule looked through, as the transpose of a weight."""
        kept = []
        for binding in reversed(self._bindings):
            if binding.var in read:
                read |= set(relax.analysis.free_vars(binding.value))
                kept.append(binding)
        self._bindings = kept[::-1]
        self._params = {key: var for key, var in self._params.items() if var in read}

    def take(self, value: Expr, form: Form) -> Expr:
        """Return ``value`` in ``form``: an argument is asked for in it, a result must be in it."""
        if value in self._values:
            var, found = self._values[value]
            if found != form:
                raise NotRewritable(f"a value in form {found} is needed in form {form}")
            return var
        position = self._position(value)
        key = (position, form)
        if key not in self._params:
            dtype = getattr(form, "dtype", str(value.ty.dtype))
            shape = form.shape(shape_of(value))
            self._params[key] = relax.Var(str(value.name), relax.TensorType(shape, dtype))
        return self._params[key]

    def is_constant(self, value: Expr) -> bool:
        """Whether the value is known when compiling."""
        return value not in self._values and self._position(value) in self.constants

    def is_in_blocks(self, value: Expr) -> bool:
        """Whether the value can be had in channel blocks without a copy."""
        if value in self._values:
            return isinstance(self._values[value][1], Blocked)
        return self._position(value) in self.in_blocks

    def definition(self, value: Expr) -> Expr:
        """Return what a variable of the group is bound to, or the argument itself."""
        bindings = self.function.body.blocks[0].bindings
        return next((b.value for b in bindings if b.var.same_as(value)), value)

    def prologue(self, value: Expr) -> Any:
        """Return the call that a product computes of its own rows first, or None."""
        return self._prologues.get(value)

    def _feeds_products_only(self, value: Var) -> bool:
        """Whether all that reads a value of this group multiplies it by a weight."""
        calls = [binding.value for binding in self.function.body.blocks[0].bindings]
        readers = [call for call in calls if value in relax.analysis.free_vars(call)]
        return bool(readers) and all(
            operator(call) == "relax.matmul" and call.args[0].same_as(value) for call in readers
        )

    def form_of(self, value: Expr) -> Form | None:
        """Return the form of a result of this group, or None for an argument."""
        return self._values[value][1] if value in self._values else None

    def emit(self, expr: Expr, name: str, *, kind: Any = None) -> Var:
        """Bind ``expr`` to a new variable of ``kind``, by default one seen only inside."""
        expr = relax.BlockBuilder().normalize(expr)
        var = (kind or relax.DataflowVar)(name, expr.ty)
        self._bindings.append(relax.VarBinding(var, expr))
        return var

    def kernel(self, emit: Callable[..., Any], *args: Expr, name: str) -> Expr:
        """Return a call of the kernel that ``emit`` makes of TE tensors."""
        # An operand that is given twice is one tensor, as it becomes one buffer later on.
        at = {arg: i for i, arg in enumerate(dict.fromkeys(args))}

        def emitted(*tensors: Any) -> Any:
            return emit(*(tensors[at[arg]] for arg in args))

        prim, args_tuple, out_ty = relax.utils.gen_call_tir_inputs(emitted, *at)
        return relax.call_tir(self.add_kernel(prim, name), args_tuple, out_ty)

    @property
    def has_blocks(self) -> bool:
        """Whether a result so far lies in blocks."""
        return any(isinstance(form, Blocked) for _, form in self._values.values())

    def _position(self, value: Expr) -> int:
        for i, param in enumerate(self.function.params):
            if param.same_as(value):
                return i
        raise NotRewritable("an operand is neither an argument nor a result of the group")


def plainly(rewriter: Rewriter, call: Any, _var: Var) -> tuple[Expr, Form]:
    """Leave an operator as it is, where what it reads is plain as well."""
    name = operator(call)
    if not name or any(isinstance(arg, relax.Tuple) for arg in call.args):
        raise NotRewritable("what is no operator of tensors has no other form")
    if any(rewriter.form_of(arg) not in (None, PLAIN) for arg in call.args):
        raise NotRewritable(f"{name} has no other form")
    return same_call(call, [take_tensor(rewriter, arg, PLAIN) for arg in call.args]), PLAIN


def same_call(call: Any, args: Sequence[Expr]) -> Expr:
    """Return the same call of other operands."""
    return relax.Call(call.op, list(args), call.attrs, call.ty_args)


def take_tensor(rewriter: Rewriter, arg: Expr, form: Form) -> Expr:
    """Return a tensor in ``form``; anything else (the limits of clip) as it is."""
    return rewriter.take(arg, form) if isinstance(arg, relax.Var) else arg


def operator(value: Any) -> str:
    """Return the name of the Relax operator that ``value`` calls, or ""."""
    is_call = isinstance(value, relax.Call) and isinstance(value.op, tvm.ir.Op)
    return str(value.op.name) if is_call else ""


def shape_of(value: Expr) -> tuple[int, ...]:
    """Return the static shape of a tensor.

    Raises
    ------
    NotRewritable
        It is no tensor, or its shape is symbolic.
    """
    shape = getattr(value.ty, "shape", None)
    if shape is None or not all(isinstance(d, int | tvm.tirx.IntImm) for d in shape):
        raise NotRewritable("a static shape is required")
    return tuple(int(d) for d in shape)


def dtypes(values: Sequence[Expr]) -> set[str]:
    """Return the element types of some tensors."""
    return {str(value.ty.dtype) for value in values}

"""Replace a recurrent layer, or a step of one, by its kernel, with packed weights."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm.recurrence import OPERATORS, Recurrence
from tvmfuse.kernels import recurrent as kernel
from tvmfuse.passes.layout.forms import PLAIN, Form, Units
from tvmfuse.passes.layout.rewrite import Expr, NotRewritable, Rewriter, dtypes, operator
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.lstm_cell import read


def recurrent(rewriter: Rewriter) -> tuple[Expr, Form]:
    """Return a call of the kernel for a group that is one layer, or one step of an LSTM.

    Raises
    ------
    NotRewritable
        The group holds something else, or numbers that are not float32.
    """
    bindings = rewriter.function.body.blocks[0].bindings
    is_layer = len(bindings) == 1 and operator(bindings[0].value) in OPERATORS
    return (_layer(rewriter, bindings[0].value) if is_layer else _cell(rewriter)), PLAIN


def _layer(rewriter: Rewriter, call: Any) -> Expr:
    recurrence = Recurrence.of(call)
    operands = recurrence.named(call.args)
    floats = [value for name, value in operands.items() if name not in ("weight", "lengths")]
    if dtypes(floats) != {"float32"} or not dtypes([operands["weight"]]) <= {"float32", "int8"}:
        raise NotRewritable("a recurrent layer needs float32")
    packed = Units(tuple(range(recurrence.gates)), rewriter.machine.lanes)
    is_packed = rewriter.is_constant(operands["weight"])
    forms = {"weight": packed if is_packed else PLAIN}
    args = [rewriter.take(value, forms.get(name, PLAIN)) for name, value in operands.items()]

    def emit(*tensors: Any) -> Any:
        return kernel.emit(recurrence, tensors, rewriter.machine)

    return rewriter.kernel(emit, *args, name=recurrence.cell)


def _cell(rewriter: Rewriter) -> Expr:
    flow = Dataflow.of("group", rewriter.function)
    reads = (read(flow, i) for i, op in enumerate(flow.operators) if op == "relax.multiply")
    found = next(filter(None, reads), None)
    if found is None or len(found.members) != len(flow.bindings):
        raise NotRewritable("the group is no step of an LSTM")
    places = {flow.var(found.hidden): 0, flow.var(found.cell): 1}
    if {*rewriter.results} != {*places}:
        raise NotRewritable("the kernel returns the new state and the new cell")
    if not rewriter.is_constant(found.weight):
        raise NotRewritable("the weight of a step must be a constant")
    count, machine = len(found.terms), rewriter.machine
    args = [rewriter.take(term, PLAIN) for term in found.terms]
    args.append(rewriter.take(found.weight, Units(found.order, machine.lanes)))
    args += [rewriter.take(value, PLAIN) for value in (found.state, found.cell_before)]

    def emit(*tensors: Any) -> Any:
        terms, operands = tensors[:count], tensors[count:]
        both = kernel.emit_cell(terms, operands, machine, order=found.order)
        return [both[places[result]] for result in rewriter.results]

    return rewriter.kernel(emit, *args, name="lstm_cell")

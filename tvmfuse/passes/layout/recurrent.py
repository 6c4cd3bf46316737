"""Replace a recurrent layer by its kernel, with the weights of the state packed."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm.recurrence import OPERATORS, Recurrence
from tvmfuse.kernels import recurrent as kernel
from tvmfuse.passes.layout.forms import PLAIN, Form, Units
from tvmfuse.passes.layout.rewrite import Expr, NotRewritable, Rewriter, dtypes, operator


def recurrent(rewriter: Rewriter) -> tuple[Expr, Form]:
    """Return a call of the kernel for a group that is one layer.

    Raises
    ------
    NotRewritable
        The group holds something else, or numbers that are not float32.
    """
    bindings = rewriter.function.body.blocks[0].bindings
    call = bindings[0].value
    if len(bindings) != 1 or operator(call) not in OPERATORS:
        raise NotRewritable("the group is more than a recurrent layer")
    recurrence = Recurrence.of(call)
    operands = recurrence.named(call.args)
    floats = [value for name, value in operands.items() if name not in ("weight", "lengths")]
    if dtypes(floats) != {"float32"} or not dtypes([operands["weight"]]) <= {"float32", "int8"}:
        raise NotRewritable("a recurrent layer needs float32")
    packed = Units(recurrence.gates, rewriter.machine.lanes)
    is_packed = rewriter.is_constant(operands["weight"])
    forms = {"weight": packed if is_packed else PLAIN}
    args = [rewriter.take(value, forms.get(name, PLAIN)) for name, value in operands.items()]

    def emit(*tensors: Any) -> Any:
        return kernel.emit(recurrence, tensors, rewriter.machine)

    return rewriter.kernel(emit, *args, name=recurrence.cell), PLAIN

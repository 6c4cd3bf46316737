"""What a person calls a call, kept in its span.

TVM 0.27 names a variable as it likes when a pass rebuilds its binding, but hands
the span of a call on.
"""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import relax, tvm

# TVMScript puts the name of its file into spans, so a label must be told from one.
_LABEL = "tvmfuse label: "


def with_label(call: Any, name: str) -> Any:
    """Return a call under a label, whatever binds it later."""
    span = tvm.ir.Span(tvm.ir.SourceName(_LABEL + name), 0, 0, 0, 0)
    return relax.Call(call.op, call.args, call.attrs, call.ty_args, span)


def flattened(expr: Any, name: str, variable: Any) -> tuple[list[Any], Any]:
    """Bind the calls nested in an expression, each under a label.

    ``relax.transform.Normalize`` would bind them too, but loses the span of a call whose
    arguments it binds.

    Parameters
    ----------
    expr : relax.Expr
        What is to be bound.
    name : str
        Label of the calls that have none.
    variable : type
        ``relax.DataflowVar`` inside a dataflow block, else ``relax.Var``.

    Returns
    -------
    tuple of (list of relax.Binding, relax.Expr)
        The bindings of what was nested, and the expression that reads them.
    """
    bindings: list[Any] = []
    known: dict[Any, Any] = {}
    builder = relax.BlockBuilder()

    def flat(part: Any) -> Any:
        if isinstance(part, relax.Tuple):
            return relax.Tuple([bound(field) for field in part.fields])
        if isinstance(part, relax.TupleGetItem):
            return relax.TupleGetItem(bound(part.tuple_value), part.index)
        if not isinstance(part, tvm.ir.Call):
            return part
        args = [bound(arg) for arg in part.args]
        call = relax.Call(part.op, args, part.attrs, part.ty_args)
        return with_label(call, label(part) or name)

    def bound(part: Any) -> Any:
        if isinstance(part, relax.Tuple):
            return flat(part)
        if not isinstance(part, tvm.ir.Call | relax.TupleGetItem):
            return part
        if part not in known:  # what is read twice is bound once
            value = builder.normalize(flat(part))
            known[part] = variable("lv", value.ty)
            bindings.append(relax.VarBinding(known[part], value))
        return known[part]

    result = flat(expr)
    return bindings, result


def label_of(binding: Any) -> str:
    """Return the label of the call that a binding holds, else the name of its variable."""
    return label(binding.value) or str(binding.var.name)


def label(expr: Any) -> str:
    """Return the label of a call, "" where it has none."""
    source = getattr(getattr(expr.span, "source_name", None), "name", "")
    return str(source.removeprefix(_LABEL)) if source.startswith(_LABEL) else ""

"""Lift the weights out of a module, so that they are stored beside the code."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse._tvm import relax, tvm, tvm_ffi


@dataclass(frozen=True)
class Lifted:
    """A module without weights, and the weights in the order of its parameter tuple."""

    module: Any
    params: dict[str, np.ndarray[Any, Any]]


def lift_parameters(mod: Any, function: str = "main") -> Lifted:
    """Turn the constant tensors of a function into one tuple that follows its inputs.

    A shared constant is lifted once. The tuple is there even where it is empty,
    so that every compiled model is called alike.

    Parameters
    ----------
    mod : tvm.IRModule
        A lowered module.
    function : str
        Name of the function.

    Returns
    -------
    Lifted
        ``main(inputs..., params)``; its attribute ``num_input`` counts the inputs.
    """
    var = mod.get_global_var(function)
    main = mod[var]
    constants: dict[Any, None] = {}

    def visit(expr: Any) -> None:
        if isinstance(expr, tvm.ir.GenericConst):
            constants[expr] = None

    relax.analysis.post_order_visit(main, visit)
    found = list(constants)
    params = relax.Var("params", relax.TupleType([constant.ty for constant in found]))
    names: dict[Any, Any] = {}
    bindings = []
    for i, constant in enumerate(found):
        names[constant] = relax.DataflowVar(f"param{i}", constant.ty)
        item = relax.BlockBuilder().normalize(relax.TupleGetItem(params, i))
        bindings.append(relax.VarBinding(names[constant], item))
    body = tvm_ffi.structural_map(
        main.body, ((tvm.ir.GenericConst, lambda c: names.get(c, c)),), order="post"
    )
    body = _with_bindings(body, bindings)
    lifted = relax.Function([*main.params, params], body, main.ret_ty, main.is_pure, main.attrs)
    lifted = lifted.with_attr("num_input", len(main.params))
    result = tvm.IRModule(dict(mod.functions.items()), attrs=mod.attrs)
    result.update_func(var, lifted)
    result = relax.transform.Normalize()(result)
    arrays = {f"param{i}": constant.value.numpy() for i, constant in enumerate(found)}
    return Lifted(result, arrays)


def _with_bindings(body: Any, bindings: list[Any]) -> Any:
    """Put ``bindings`` before all others, where every block can see them."""
    if not bindings:
        return body
    outside = [relax.VarBinding(relax.Var(b.var.name, b.var.ty), b.value) for b in bindings]
    names = {b.var: o.var for b, o in zip(bindings, outside, strict=True)}
    body = tvm_ffi.structural_map(
        body, ((relax.DataflowVar, lambda v: names.get(v, v)),), order="post"
    )
    return relax.SeqExpr([relax.BindingBlock(outside), *body.blocks], body.body)

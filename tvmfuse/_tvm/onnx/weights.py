"""Keep weights as parameters, without losing what shapes are computed from.

TVM 0.27's ``keep_params_in_input`` makes a parameter of every initializer
before importing, so that a Reshape no longer knows its shape. Here all are
constants while importing, and what is left of the weights then becomes
parameters.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tvmfuse._tvm import relax, tvm, tvm_ffi


def lift_weights(module: Any, weights: Mapping[relax.Expr, str]) -> Any:
    """Turn constants of ``main`` into parameters that follow the inputs.

    Parameters
    ----------
    module : IRModule
        Its function ``main`` has only inputs as parameters.
    weights : Mapping of relax.Expr to str
        The constants and the names of the parameters to be. Those that are not
        in use, or hold one element, are left alone.

    Returns
    -------
    IRModule
        ``main`` with the values of the new parameters in the attribute
        ``params`` and the number of inputs in ``num_input``, as TVM's own
        importers leave them.
    """
    names = {constant: name for constant, name in weights.items() if _size(constant) > 1}
    params: dict[Any, relax.Var] = {}

    def lift(constant: Any) -> Any:
        if constant not in names:
            return constant
        if constant not in params:
            params[constant] = relax.Var(names[constant], constant.ty)
        return params[constant]

    main = module["main"]
    body = tvm_ffi.structural_map(main.body, (tvm.ir.GenericConst, lift))
    lifted = relax.Function([*main.params, *params.values()], body, main.ret_ty, attrs=main.attrs)
    lifted = lifted.with_attrs(
        {"num_input": len(main.params), "params": [constant.value for constant in params]}
    )
    return tvm.IRModule({"main": lifted})


def _size(constant: Any) -> int:
    return int(constant.value.numpy().size)

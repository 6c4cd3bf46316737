"""TVM's importer of torch.export programs, with its failures named.

In TVM 0.27 a comparison of booleans becomes a floating-point comparison of
single bits, which LLVM rejects; ``eq`` is converted here.
"""

from __future__ import annotations

import operator
from typing import Any

from tvmfuse._tvm import relax, tvm
from tvmfuse._tvm.failures import FAILURES, reason
from tvmfuse.errors import ModelError


def import_program(program: Any, *, keep_params: bool) -> Any:
    """Convert a ``torch.export.ExportedProgram`` into a Relax module.

    Parameters
    ----------
    program : torch.export.ExportedProgram
        The program; its operators are decomposed as PyTorch does by default.
    keep_params : bool
        Whether weights stay parameters behind the inputs.

    Returns
    -------
    IRModule
        With one function, ``main``.

    Raises
    ------
    ModelError
        PyTorch is not installed, or TVM cannot convert the program.
    """
    try:
        from tvm.relax.frontend.torch import from_exported_program
    except ImportError as error:
        raise ModelError(
            "an exported program needs PyTorch: pip install 'tvmfuse[torch]'"
        ) from error
    try:
        return from_exported_program(
            program,
            keep_params_as_input=keep_params,
            unwrap_unit_return_tuple=True,
            custom_convert_map={"eq.Tensor": _convert_eq},
        )
    except FAILURES as error:
        raise ModelError(
            f"the exported program cannot be imported by TVM {tvm.__version__}: {reason(error)}"
        ) from error


def _convert_eq(node: Any, importer: Any) -> relax.Expr:
    left, right = importer.retrieve_args(node)
    if not (_is_boolean(left) and _is_boolean(right)):
        return importer._binary_op(relax.op.equal, operator.eq)(node)
    different = importer.block_builder.emit(relax.op.logical_xor(left, right))
    return importer.block_builder.emit(relax.op.logical_not(different))


def _is_boolean(value: Any) -> bool:
    return isinstance(value, relax.Expr) and str(value.ty.dtype) == "bool"

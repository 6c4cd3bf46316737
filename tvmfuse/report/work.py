"""How much arithmetic a model is, whatever runs it."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import relax
from tvmfuse.frontend import import_model
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.patterns import operators


def flops(source: Any) -> int:
    """Return the floating-point operations of one run of a model.

    Parameters
    ----------
    source : str, PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, with static shapes.

    Returns
    -------
    int
        One multiply-add counts as two; a convolution by its definition.
    """
    module = canonicalise(import_model(source).module)
    total = 0

    def visit(expr: Any) -> None:
        nonlocal total
        if isinstance(expr, relax.Call) and operators.is_groupable(expr):
            total += operators.flops(expr)

    relax.analysis.post_order_visit(module["main"], visit)
    return total

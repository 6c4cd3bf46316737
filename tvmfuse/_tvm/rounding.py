"""Round a tensor to 8 bits by its own range and back, as quantised layers do while they run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfuse._tvm import relax

Expr = Any  # relax.Expr

op = relax.op


def rounded(x: Expr, emit: Callable[[Expr], Expr]) -> Expr:
    """Return ``x`` in the 256 steps that ``DynamicQuantizeLinear`` of ONNX divides its range into.

    Parameters
    ----------
    x : relax.Expr
        float32, of any shape.
    emit : callable
        Binds an expression to a variable.
    """
    zero, one, steps = (relax.const(number, "float32") for number in (0.0, 1.0, 255.0))
    low, high = emit(op.minimum(op.min(x), zero)), emit(op.maximum(op.max(x), zero))
    width = emit(op.subtract(high, low))
    step = emit(op.where(op.greater(width, zero), op.divide(width, steps), one))
    # 0 is one of the steps; this one.
    middle = emit(op.quantize(op.negative(low), step, relax.const(0, "uint8"), out_dtype="uint8"))
    whole = emit(op.quantize(x, step, middle, out_dtype="uint8"))
    return emit(op.dequantize(whole, step, middle, out_dtype="float32"))

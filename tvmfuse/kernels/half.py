"""Half-precision tensors: numbers of float16 and bfloat16 are stored, float32 computes."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import te
from tvmfuse.kernels import approx

Tensor = Any  # te.Tensor

FLOATS = ("float32", "float16", "bfloat16")


def cast(x: Tensor, dtype: str) -> Tensor:
    """Emit a conversion between float types."""
    return te.compute(x.shape, lambda *i: approx.cast(x[i], dtype), name="cast")


def narrowed(x: Tensor, dtype: str) -> Tensor:
    """Return sums in the type of what was summed."""
    return x if str(x.dtype) == dtype else cast(x, dtype)


def astype(builder: Any, call: Any) -> Any:
    """Legalise a conversion.

    TVM 0.27 takes the bits of a bfloat16 for a whole number where it converts it without
    computing with it.
    """
    (x,) = call.args
    types = {str(x.ty.dtype), str(call.ty.dtype)}
    if "bfloat16" not in types or not types <= set(FLOATS) or x.ty.shape is None:
        return call.op.get_attr("FLegalize")(builder, call)
    return builder.call_te(cast, x, str(call.ty.dtype), primfunc_name_hint="cast")

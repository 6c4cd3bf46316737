"""Quantisation of float32, as ONNX defines it: ties to even, then saturated.

TVM 0.27 rounds in its own rule as well, but clips and converts what LLVM does not keep
in vector registers.
"""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import te, tirx

Tensor = Any  # te.Tensor

_LIMITS = {"int8": (-128, 127), "uint8": (0, 255)}


def legalize(builder: Any, call: Any) -> Any:
    """Legalise ``relax.quantize`` of static float32 tensors to 8 bits; leave others to TVM."""
    x, scale, zero_point = call.args
    dtype = str(call.ty.dtype)
    is_static = x.ty.shape is not None and all(isinstance(d, int | tirx.IntImm) for d in x.ty.shape)
    if dtype not in _LIMITS or str(x.ty.dtype) != "float32" or not is_static:
        return call.op.get_attr("FLegalize")(builder, call)
    axis = int(call.attrs.axis) % max(len(x.ty.shape), 1)

    def emit(x: Tensor, scale: Tensor, zero_point: Tensor) -> Tensor:
        def value(*i: Any) -> Any:
            return quantised(x[i], _at(scale, i, axis), _at(zero_point, i, axis), dtype)

        return te.compute(x.shape, value, name="quantize")

    return builder.call_te(emit, x, scale, zero_point, primfunc_name_hint="quantize")


def quantised(x: Any, scale: Any, zero_point: Any, dtype: str) -> Any:
    """Return ``x / scale + zero_point`` as ``dtype``; NaN becomes its least value.

    Parameters
    ----------
    x, scale : expression
        float32.
    zero_point : expression
        Of ``dtype``.
    dtype : str
        ``int8`` or ``uint8``.
    """
    low, high = (tirx.const(limit, "float32") for limit in _LIMITS[dtype])
    whole = te.nearbyint(x / scale) + zero_point.astype("int32").astype("float32")
    # LLVM's maximum returns its second operand where one is NaN, see :mod:`.approx`.
    limited = tirx.Min(tirx.Max(whole, low), high)
    return tirx.Cast(dtype, tirx.Cast("int32", limited))


def _at(parameter: Tensor, index: Any, axis: int) -> Any:
    if all(int(d) == 1 for d in parameter.shape):
        return parameter[(0,) * len(parameter.shape)]
    return parameter[index[axis]]

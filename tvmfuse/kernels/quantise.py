"""Quantisation of float32, as ONNX defines it: ties to even, then saturated.

TVM 0.27 rounds in its own rule as well, but clips and converts what LLVM does not keep
in vector registers.
"""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx

Tensor = Any  # te.Tensor

_WHOLE = 1.5 * 2.0**23  # here floats are the whole numbers
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

    A division takes as long as ten multiplications. So the quotient is one by the inverse of
    the scale, corrected by what it leaves of ``x``: that is the float next to the exact one
    (Markstein). What is beyond the limits is cut off before, and infinity with it.

    Parameters
    ----------
    x, scale : expression
        float32. Ties are exact for scales of 1e-30 to 1e30.
    zero_point : expression
        Of ``dtype``.
    dtype : str
        ``int8`` or ``uint8``.
    """
    low, high = (tirx.const(limit, "float32") for limit in _LIMITS[dtype])
    zero = zero_point.astype("int32")
    one_end, other_end = ((limit - zero.astype("float32")) * scale for limit in (low, high))
    inverse = tirx.const(1.0, "float32") / scale

    def rounded(limited: Any) -> Any:
        return approx.bind(limited * inverse, lambda near: whole(limited, near))

    def whole(limited: Any, near: Any) -> Any:
        left = _fma(-near, scale, limited)
        # The lowest bits of a float of this size are the whole number next to it.
        bits = tirx.reinterpret("int32", _fma(left, inverse, near) + tirx.const(_WHOLE, "float32"))
        return tirx.Cast(dtype, bits + zero)

    # LLVM's maximum returns its second operand where one is NaN, see :mod:`.approx`.
    limited = tirx.Min(tirx.Max(x, tirx.Min(one_end, other_end)), tirx.Max(one_end, other_end))
    return approx.bind(limited, rounded)


def _fma(a: Any, b: Any, c: Any) -> Any:
    """Return ``a * b + c``, rounded once."""
    return tirx.call_intrin("float32", "tirx.fma", a, b, c)


def _at(parameter: Tensor, index: Any, axis: int) -> Any:
    if all(int(d) == 1 for d in parameter.shape):
        return parameter[(0,) * len(parameter.shape)]
    return parameter[index[axis]]

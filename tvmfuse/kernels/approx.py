"""Float32 functions that stay in vector registers, with stated errors.

LLVM turns ``exp``, ``tanh`` and ``erf`` over a vector into one library call per
lane. These expressions use arithmetic only. ``scripts/fit_approximations.py``
fitted the coefficients (Loeb's iteration with Lawson's weights, which converges
to the minimax fit); tests hold the errors against float64:

========= =================== ==========================================
function  relative error      special values
========= =================== ==========================================
exp       under 2e-7          NaN, exp(-inf) = 0, overflow to inf
tanh      under 4e-7          NaN, +-1 from 9 on
erf       under 5e-7          NaN, +-1 from 3.9 on
sigmoid   under 3e-7          NaN, 0 and 1 at the ends
========= =================== ==========================================

Every function takes and returns one TIR expression, and names what it needs twice,
so that an inlined producer is not computed several times.

LLVM's code for ``tirx.Max(constant, x)`` is one instruction that gives the second
operand where either is NaN, so with the constant first it keeps NaN. A ``Select``
would do the same, but TVM's analyser visits both its branches again for every name
bound around it: the third ``exp`` around another took half a minute to compile.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse._tvm import tirx

Expr = Any  # tirx.PrimExpr

_TANH = (
    (0.99999998, 0.133809746, 0.0034955265, 2.06080416e-05, 1.33531973e-08),
    (1.0, 0.467142903, 0.0258767503, 0.000328553269, 7.77596232e-07),
)
_TANH_LIMIT = 9.0
_ERF = (
    (
        1.12837911,
        0.198156447,
        0.0503413453,
        0.0036310953,
        0.000140564033,
        -1.9629368e-06,
        2.01465057e-08,
    ),
    (1.0, 0.508943331, 0.11427007, 0.0142055374, 0.000940270912),
)
_ERF_LIMIT = 3.9
_EXP_LOW, _EXP_HIGH = -104.0, 89.0  # beyond these the result is 0 or inf
_EXP_NORMAL = -87.33  # below this the result is no normal number
# ln 2 in two parts (Cody and Waite), so that x - n ln 2 is exact enough.
_LN2_HIGH, _LN2_LOW = 0.693359375, -2.12194440e-4
# exp(r) for |r| <= ln(2) / 2: error 3e-9.
_EXP = (1.0, 1.0, 0.499999935, 0.166665207, 0.0416683874, 0.00836871026, 0.00138146112)


def exp(x: Expr) -> Expr:
    """Return e to the ``x``: 2^n times a polynomial of the remainder."""

    def scaled(clipped: Expr, n: Expr) -> Expr:
        whole = tirx.Cast("int32", n)
        half = whole >> 1
        remainder = clipped - n * _f(_LN2_HIGH) - n * _f(_LN2_LOW)
        series = bind(remainder, lambda r: _polynomial(_EXP, r))
        return bind(half, lambda h: series * _power_of_two(h) * _power_of_two(whole - h))

    def reduced(clipped: Expr) -> Expr:
        n = tirx.floor(clipped * _f(math.log2(math.e)) + _f(0.5))
        return bind(n, lambda n: scaled(clipped, n))

    return bind(clip(x, _EXP_LOW, _EXP_HIGH), reduced)


def exp_below(x: Expr) -> Expr:
    """Return e to an ``x`` that is not above 0, as a softmax needs it, in fewer steps.

    The exponent is added to the bits of the polynomial; what would be denormal is 0.
    """

    def scaled(clipped: Expr, n: Expr) -> Expr:
        remainder = clipped - n * _f(_LN2_HIGH) - n * _f(_LN2_LOW)
        series = bind(remainder, lambda r: _polynomial(_EXP, r))
        bits = tirx.reinterpret("int32", series) + (tirx.Cast("int32", n) << 23)
        return tirx.reinterpret("float32", bits)

    def power(x: Expr) -> Expr:
        clipped = tirx.Max(_f(_EXP_NORMAL), x)
        value = bind(
            clipped,
            lambda c: bind(
                _llvm("llvm.roundeven", c * _f(math.log2(math.e))), lambda n: scaled(c, n)
            ),
        )
        return tirx.Select(x < _f(_EXP_NORMAL), _f(0.0), value)

    return bind(x, power)


def tanh(x: Expr) -> Expr:
    """Return the hyperbolic tangent of ``x``."""
    return _odd_rational(x, *_TANH, limit=_TANH_LIMIT)


def erf(x: Expr) -> Expr:
    """Return the error function of ``x``."""
    return _odd_rational(x, *_ERF, limit=_ERF_LIMIT)


def sigmoid(x: Expr) -> Expr:
    """Return ``1 / (1 + exp(-x))``."""
    return _f(1.0) / (_f(1.0) + exp(_f(0.0) - x))


def clip(x: Expr, low: float, high: float) -> Expr:
    """Limit ``x`` to [low, high]; NaN stays NaN."""
    x = _expr(x)
    return tirx.Min(_as(x, high), tirx.Max(_as(x, low), x))


def relu(x: Expr) -> Expr:
    """Return ``x`` where it is positive or NaN, else 0."""
    x = _expr(x)
    return tirx.Max(_as(x, 0), x)


def maximum(a: Expr, b: Expr) -> Expr:
    """Return the larger operand, or NaN where either is (IEEE 754-2019, NumPy)."""
    return _llvm("llvm.maximum", a, b)


def minimum(a: Expr, b: Expr) -> Expr:
    """Return the smaller operand, or NaN where either is (IEEE 754-2019, NumPy)."""
    return _llvm("llvm.minimum", a, b)


def bind(value: Expr, body: Callable[[Expr], Expr]) -> Expr:
    """Name ``value`` once and use it in ``body``."""
    value = _expr(value)
    if isinstance(value, tirx.Var | tirx.IntImm | tirx.FloatImm):
        return body(value)
    var = tirx.Var("v", value.ty)
    return tirx.Let(var, value, body(var))


def cast(x: Expr, dtype: str) -> Expr:
    """Convert ``x`` between float types.

    TVM 0.27 rounds to bfloat16 by arithmetic that mentions its operand twice, and then
    refuses that names in it are bound twice. Here the bits have a name.
    """
    x = _expr(x)
    if str(x.ty.dtype) == dtype:
        return x
    if str(x.ty.dtype) == "bfloat16":
        bits = tirx.Cast("uint32", tirx.reinterpret("uint16", x)) << _u(16)
        return cast(tirx.reinterpret("float32", bits), dtype)
    if dtype != "bfloat16":
        return tirx.Cast(dtype, x)

    def rounded(bits: Expr) -> Expr:
        half = (bits >> _u(16) & _u(1)) + _u(0x7FFF)  # ties to even
        return tirx.Cast("uint16", (bits + half) >> _u(16))

    bits = tirx.reinterpret("uint32", tirx.Cast("float32", x))
    return tirx.reinterpret(dtype, bind(bits, rounded))


def _odd_rational(
    x: Expr, numerator: Sequence[float], denominator: Sequence[float], *, limit: float
) -> Expr:
    def ratio(x: Expr) -> Expr:
        return bind(x * x, lambda t: x * _polynomial(numerator, t) / _polynomial(denominator, t))

    return bind(clip(x, -limit, limit), ratio)


def _polynomial(coefficients: Sequence[float], x: Expr) -> Expr:
    """Evaluate by Horner's rule; ``coefficients`` ascend."""
    result = _f(coefficients[-1])
    for coefficient in coefficients[-2::-1]:
        result = result * x + _f(coefficient)
    return result


def _power_of_two(n: Expr) -> Expr:
    return tirx.reinterpret("float32", (n + 127) << 23)


def _expr(x: Expr) -> Expr:
    return x.asobject() if hasattr(x, "asobject") else x  # a slice of a TE tensor


def _llvm(name: str, *args: Expr) -> Expr:
    args = tuple(_expr(arg) for arg in args)
    return tirx.call_llvm_pure_intrin(str(args[0].ty.dtype), name, *args)


def _as(x: Expr, value: float) -> Expr:
    return tirx.const(value, x.ty.dtype)


def _f(value: float) -> Expr:
    return tirx.const(value, "float32")


def _u(value: int) -> Expr:
    return tirx.const(value, "uint32")

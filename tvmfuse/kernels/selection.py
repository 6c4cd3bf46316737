"""Operators that choose among their operands: they keep NaN, in every float type.

TVM 0.27 drops NaN in all of them. Those here take float64 and symbolic extents too;
half-precision numbers pass through float32, which changes none of them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx, half
from tvmfuse.kernels.rows import Combine, maximum, minimum

Builder = Any  # relax.BlockBuilder
Call = Any  # relax.Call
Expr = Any  # tirx.PrimExpr
Rule = Callable[[Builder, Call], Any]
Tensor = Any  # te.Tensor

_FLOATS = (*half.FLOATS, "float64")


def rules() -> Mapping[str, Rule]:
    """Return the rules by operator, as ``relax.transform.LegalizeOps`` takes them."""
    makers: Mapping[str, Rule] = {
        "relax.nn.relu": lambda builder, call: _unary(builder, call, approx.relu),
        "relax.nn.leakyrelu": _leaky_relu,
        "relax.clip": _clip,
        "relax.maximum": lambda builder, call: _binary(builder, call, approx.maximum),
        "relax.minimum": lambda builder, call: _binary(builder, call, approx.minimum),
        "relax.max": lambda builder, call: _extreme(builder, call, maximum()),
        "relax.min": lambda builder, call: _extreme(builder, call, minimum()),
    }
    return {name: _guarded(rule) for name, rule in makers.items()}


def _guarded(rule: Rule) -> Rule:
    """Apply ``rule`` to tensors of one float type and known rank, and TVM's own to others."""

    def legalize(builder: Builder, call: Call) -> Any:
        result = rule(builder, call) if _is_covered(call) else None
        return call.op.get_attr("FLegalize")(builder, call) if result is None else result

    return legalize


def _is_covered(call: Call) -> bool:
    tensors = [arg for arg in call.args if hasattr(arg.ty, "shape") and hasattr(arg.ty, "ndim")]
    return str(call.ty.dtype) in _FLOATS and all(
        t.ty.dtype == call.ty.dtype and t.ty.shape is not None for t in [*tensors, call]
    )


def _unary(builder: Builder, call: Call, function: Callable[[Expr], Expr]) -> Any:
    def emit(x: Tensor) -> Tensor:
        return te.compute(x.shape, lambda *i: approx.bind(x[i], function), name=_name(call))

    return _computed(builder, call, emit, call.args[0])


def _binary(builder: Builder, call: Call, function: Callable[[Expr, Expr], Expr]) -> Any:
    def emit(a: Tensor, b: Tensor) -> Tensor:
        return te.compute(
            list(call.ty.shape),
            lambda *i: function(a[_broadcast(a, i)], b[_broadcast(b, i)]),
            name=_name(call),
        )

    return _computed(builder, call, emit, *call.args)


def _leaky_relu(builder: Builder, call: Call) -> Any:
    alpha = float(call.attrs.alpha)

    def value(x: Expr) -> Expr:
        below = x * tirx.const(alpha, x.ty.dtype)
        if 0 <= alpha <= 1:  # then the larger of the two is the right one
            return tirx.Max(below, x)
        return tirx.Select(x < tirx.const(0, x.ty.dtype), below, x)

    return _unary(builder, call, value)


def _clip(builder: Builder, call: Call) -> Any:
    low, high = (_number(arg) for arg in call.args[1:3])
    if low is None or high is None:
        return None
    return _unary(builder, call, lambda x: approx.clip(x, low, high))


def _extreme(builder: Builder, call: Call, combine: Combine) -> Any:
    rank = int(call.args[0].ty.ndim)
    given = call.attrs.axis
    axes = range(rank) if given is None else sorted(int(a) % rank for a in given)
    shape = list(call.args[0].ty.shape)
    if not axes or any(isinstance(d, int | tirx.IntImm) and int(d) == 0 for d in shape):
        return None
    is_kept = bool(call.attrs.keepdims)

    def emit(x: Tensor) -> Tensor:
        reduced = {a: te.reduce_axis((0, x.shape[a]), f"k{a}") for a in axes}

        def value(*index: Any) -> Expr:
            rest = iter(index if not is_kept else [i for a, i in enumerate(index) if a not in axes])
            at = [reduced[a] if a in reduced else next(rest) for a in range(rank)]
            return combine(x[tuple(at)], axis=list(reduced.values()))

        return te.compute(list(call.ty.shape), value, name=_name(call))

    return _computed(builder, call, emit, call.args[0])


def _computed(builder: Builder, call: Call, emit: Callable[..., Tensor], *args: Any) -> Any:
    """Return a call of the kernel that ``emit`` makes of float32 or float64 tensors."""
    dtype = str(call.ty.dtype)

    def converted(*tensors: Tensor) -> Tensor:
        return half.cast(emit(*(half.cast(tensor, "float32") for tensor in tensors)), dtype)

    wanted = emit if dtype in ("float32", "float64") else converted
    return builder.call_te(wanted, *args, primfunc_name_hint=_name(call))


def _broadcast(x: Tensor, index: Sequence[Any]) -> tuple[Any, ...]:
    lead = len(index) - len(x.shape)
    ones = [isinstance(d, int | tirx.IntImm) and int(d) == 1 for d in x.shape]
    return tuple(0 if one else index[lead + i] for i, one in enumerate(ones))


def _number(expr: Any) -> float | None:
    value = getattr(expr, "value", expr)
    value = getattr(value, "value", value)
    return float(value) if isinstance(value, int | float) else None


def _name(call: Call) -> str:
    return str(call.op.name).rpartition(".")[2]

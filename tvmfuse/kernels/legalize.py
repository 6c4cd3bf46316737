"""What Relax operators become on a CPU, where TVM's own choice is slow or wrong.

TVM 0.27 lets LLVM compute ``exp``, ``tanh`` and ``erf`` lane by lane, loses NaN in
``relu``, ``clip``, ``maximum`` and ``minimum``, takes variances as differences of
large sums, adds half-precision numbers up in half precision, and multiplies
matrices by three plain loops. Each rule here computes in float32, whatever floats
it reads and writes, and falls back to TVM's own for other element types.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import (
    approx,
    concatenate,
    gemm,
    half,
    quantise,
    reduction,
    resize,
    selection,
    window,
)
from tvmfuse.kernels.rows import Combine, Rows, maximum, minimum, reduce, sums
from tvmfuse.kernels.tiling import Machine

Call = Any  # relax.Call
Builder = Any  # relax.BlockBuilder
Rule = Callable[[Builder, Call], Any]
Tensor = Any  # te.Tensor

_NARROW = ("int8", "uint8", "int16")
_POOLING = tuple(f"relax.nn.max_pool{n}d" for n in (1, 2, 3))


def rules(machine: Machine) -> Mapping[str, Rule]:
    """Return the rules by operator, as ``relax.transform.LegalizeOps`` takes them."""
    makers = {
        **{f"relax.{name}": _unary(f) for name, f in _UNARY.items()},
        **{f"relax.{name}": _half(f) for name, f in _ARITHMETIC.items()},
        **dict.fromkeys(_POOLING, _max_pool),
        "relax.nn.softmax": _softmax(machine, is_log=False),
        "relax.nn.log_softmax": _softmax(machine, is_log=True),
        "relax.nn.layer_norm": _layer_norm(machine),
        "relax.nn.rms_norm": _rms_norm(machine),
        "relax.nn.group_norm": _group_norm(machine),
        "relax.sum": _reduce(machine, sums),
        "relax.mean": _reduce(machine, sums, is_mean=True),
        "relax.max": _reduce(machine, maximum),
        "relax.min": _reduce(machine, minimum),
    }
    others = selection.rules()
    guarded = {name: _guarded(rule, others.get(name)) for name, rule in makers.items()}
    mixed: dict[str, Rule] = {
        "relax.astype": half.astype,
        "relax.concat": concatenate.legalize,
        "relax.matmul": _matmul(machine),
        "relax.quantize": quantise.legalize,
        "relax.image.resize2d": resize.legalize,
        "relax.image.resize3d": resize.legalize,
    }
    return {**others, **guarded, **mixed}


def _guarded(rule: Rule, otherwise: Rule | None = None) -> Rule:
    """Apply ``rule`` to static tensors of one float type, else another one, else TVM's own."""

    def legalize(builder: Builder, call: Call) -> Any:
        if _is_covered(call):
            result = rule(builder, call)
            if result is not None:
                return result
        fallback = otherwise or call.op.get_attr("FLegalize")
        return fallback(builder, call)

    return legalize


def _is_covered(call: Call) -> bool:
    tensors = [arg for arg in call.args if hasattr(arg.ty, "shape") and hasattr(arg.ty, "ndim")]
    dtype = str(call.ty.dtype)
    is_pooling = str(call.op.name) in _POOLING  # it only chooses, in any float type
    return (dtype in half.FLOATS or (is_pooling and dtype == "float64")) and all(
        str(t.ty.dtype) == dtype
        and t.ty.shape is not None
        and all(isinstance(d, int | tirx.IntImm) for d in t.ty.shape)
        for t in [*tensors, call]
    )


def _is_static(tensors: Sequence[Any]) -> bool:
    return all(
        t.ty.shape is not None and all(isinstance(d, int | tirx.IntImm) for d in t.ty.shape)
        for t in tensors
    )


def _computed(builder: Builder, call: Call, emit: Callable[..., Tensor], *args: Any) -> Any:
    """Return a call of the kernel that ``emit`` makes of float32 tensors."""
    dtype = str(call.ty.dtype)

    def converted(*tensors: Tensor) -> Tensor:
        return half.cast(emit(*(half.cast(tensor, "float32") for tensor in tensors)), dtype)

    wanted = emit if dtype in ("float32", "float64") else converted
    return builder.call_te(wanted, *args, primfunc_name_hint=_name(call))


def _gelu(x: Any) -> Any:
    half = tirx.const(0.5, "float32")
    return x * (half + half * approx.erf(x * tirx.const(math.sqrt(0.5), "float32")))


def _gelu_tanh(x: Any) -> Any:
    half, one = tirx.const(0.5, "float32"), tirx.const(1.0, "float32")
    cubic = x * (one + tirx.const(0.044715, "float32") * x * x)
    return half * x * (one + approx.tanh(tirx.const(math.sqrt(2 / math.pi), "float32") * cubic))


_UNARY: Mapping[str, Callable[[Any], Any]] = {
    "exp": approx.exp,
    "tanh": approx.tanh,
    "erf": approx.erf,
    "sigmoid": approx.sigmoid,
    "nn.gelu": _gelu,
    "nn.gelu_tanh": _gelu_tanh,
    "nn.silu": lambda x: x * approx.sigmoid(x),
}

APPROXIMATED = frozenset(f"relax.{name}" for name in _UNARY)
"""Operators whose kernels name intermediate values, see :mod:`approx`."""


def _unary(function: Callable[[Any], Any]) -> Rule:
    def rule(builder: Builder, call: Call) -> Any:
        def emit(x: Tensor) -> Tensor:
            return te.compute(x.shape, lambda *i: approx.bind(x[i], function), name=_name(call))

        return _computed(builder, call, emit, call.args[0])

    return rule


def _binary(function: Callable[[Any, Any], Any]) -> Rule:
    def rule(builder: Builder, call: Call) -> Any:
        def emit(a: Tensor, b: Tensor) -> Tensor:
            shape = [int(d) for d in call.ty.shape]
            return te.compute(
                shape,
                lambda *i: function(a[_broadcast(a, i)], b[_broadcast(b, i)]),
                name=_name(call),
            )

        return _computed(builder, call, emit, *call.args)

    return rule


_ARITHMETIC: Mapping[str, Callable[[Any, Any], Any]] = {
    "add": operator.add,
    "subtract": operator.sub,
    "multiply": operator.mul,
    "divide": operator.truediv,
}


def _half(function: Callable[[Any, Any], Any]) -> Rule:
    """Compute half-precision arithmetic in float32, which rounds to the same number."""
    compute = _binary(function)

    def rule(builder: Builder, call: Call) -> Any:
        return None if str(call.ty.dtype) == "float32" else compute(builder, call)

    return rule


def _matmul(machine: Machine) -> Rule:
    """Multiply floats, floats and bytes, or integers whose sums are int32."""

    def is_covered(call: Call) -> bool:
        out, dtypes = str(call.ty.dtype), {str(arg.ty.dtype) for arg in call.args}
        if not _is_static([*call.args, call]):
            return False
        if out == "int32":
            return dtypes <= {*_NARROW, "int32"}
        return out in half.FLOATS and dtypes <= {*half.FLOATS, *_NARROW}

    def rule(builder: Builder, call: Call) -> Any:
        a, b = call.args
        is_empty = not is_covered(call) or 0 in [int(d) for d in (*call.ty.shape, a.ty.shape[-1])]
        if is_empty or min(len(a.ty.shape), len(b.ty.shape)) < 2:
            return call.op.get_attr("FLegalize")(builder, call)
        dtype = str(call.ty.dtype)

        def emit(x: Tensor, y: Tensor) -> Tensor:
            return gemm.emit_batched(x, y, machine, out_dtype=dtype)

        return builder.call_te(emit, a, b, primfunc_name_hint="matmul")

    return rule


def _max_pool(builder: Builder, call: Call) -> Any:
    attrs = call.attrs
    layout = str(attrs.layout)
    if layout not in ("NCW", "NCHW", "NCDHW") or str(attrs.out_layout or layout) != layout:
        return None
    kernel, strides, dilation, padding = (
        [int(v) for v in values]
        for values in (attrs.pool_size, attrs.strides, attrs.dilation, attrs.padding)
    )

    def emit(x: Tensor) -> Tensor:
        return window.emit_plain_max(
            x,
            [int(d) for d in call.ty.shape],
            kernel=kernel,
            strides=strides,
            dilation=dilation,
            before=padding[: len(kernel)],
        )

    return _computed(builder, call, emit, call.args[0])


def _softmax(machine: Machine, *, is_log: bool) -> Rule:
    def rule(builder: Builder, call: Call) -> Any:
        axis = int(call.attrs.axis)

        def emit(x: Tensor) -> Tensor:
            return reduction.softmax(x, axis, machine.lanes, is_log=is_log)

        return _computed(builder, call, emit, call.args[0])

    return rule


def _layer_norm(machine: Machine) -> Rule:
    def rule(builder: Builder, call: Call) -> Any:
        attrs = call.attrs
        axes = [int(a) for a in attrs.axes]
        center, scale = bool(attrs.center), bool(attrs.scale)

        def emit(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
            def affine(normal: Any, i: Any) -> Any:
                at = tuple(i[a] for a in axes)
                scaled = normal * gamma[at] if scale else normal
                return scaled + beta[at] if center else scaled

            return reduction.normalize(
                x, axes, machine.lanes, epsilon=float(attrs.epsilon), affine=affine
            )

        return _computed(builder, call, emit, *call.args)

    return rule


def _rms_norm(machine: Machine) -> Rule:
    def rule(builder: Builder, call: Call) -> Any:
        axes = [int(a) for a in call.attrs.axes]

        def emit(x: Tensor, gamma: Tensor) -> Tensor:
            return reduction.normalize(
                x,
                axes,
                machine.lanes,
                epsilon=float(call.attrs.epsilon),
                centered=False,
                affine=lambda normal, i: normal * gamma[tuple(i[a] for a in axes)],
            )

        return _computed(builder, call, emit, *call.args[:2])

    return rule


def _group_norm(machine: Machine) -> Rule:
    def rule(builder: Builder, call: Call) -> Any:
        attrs, rank = call.attrs, int(call.ty.ndim)
        axes = sorted(int(axis) % rank for axis in attrs.axes)
        if int(attrs.channel_axis) % rank != 1 or axes != list(range(2, rank)):
            return None
        center, scale = bool(attrs.center), bool(attrs.scale)

        def emit(x: Tensor, gamma: Tensor, beta: Tensor) -> Tensor:
            def affine(normal: Any, channel: Any) -> Any:
                scaled = normal * gamma[channel] if scale else normal
                return scaled + beta[channel] if center else scaled

            return reduction.normalize_groups(
                x,
                int(attrs.num_groups),
                machine.lanes,
                epsilon=float(attrs.epsilon),
                affine=affine,
            )

        return _computed(builder, call, emit, *call.args)

    return rule


def _reduce(machine: Machine, combine: Callable[[], Combine], *, is_mean: bool = False) -> Rule:
    def rule(builder: Builder, call: Call) -> Any:
        shape = tuple(int(d) for d in call.args[0].ty.shape)
        given = call.attrs.axis
        axes = tuple(range(len(shape))) if given is None else [int(a) for a in given]
        axes = tuple(sorted(a % len(shape) for a in axes)) if shape else ()
        if not axes or 0 in shape:
            return None
        rows, keep = Rows(shape, axes), bool(call.attrs.keepdims)
        scale = tirx.const(1.0 / rows.length if is_mean else 1.0, "float32")

        def emit(x: Tensor) -> Tensor:
            total = reduce(lambda *i: x[i], rows, combine(), machine.lanes, name=_name(call))
            return _finish(total, rows, scale=scale if is_mean else None, keep=keep)

        return _computed(builder, call, emit, call.args[0])

    return rule


def _finish(total: Tensor, rows: Rows, *, scale: Any, keep: bool) -> Tensor:
    """Scale a statistic, and drop its ones where they are not kept."""
    if keep and scale is None:
        return total
    shape = [d for i, d in enumerate(rows.kept) if keep or i not in rows.axes]

    def value(*index: Any) -> Any:
        rest = iter(index)
        at = index if keep else [0 if i in rows.axes else next(rest) for i in range(len(rows.kept))]
        return total[tuple(at)] if scale is None else total[tuple(at)] * scale

    return te.compute(shape, value, name="result")


def _broadcast(x: Tensor, index: Any) -> tuple[Any, ...]:
    lead = len(index) - len(x.shape)
    return tuple(0 if int(d) == 1 else index[lead + i] for i, d in enumerate(x.shape))


def _name(call: Call) -> str:
    return str(call.op.name).rpartition(".")[2]

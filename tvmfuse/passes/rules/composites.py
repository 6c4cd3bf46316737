"""Recognise operators that exporters write out as arithmetic.

Relax has GELU, SiLU, layer and RMS normalisation as operators; model files often
hold their formulas instead. As one operator they match patterns, show under
their name, and are computed as their family computes them best.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import constant, to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.trace import Found, Graph, Traced, trace

_SQRT_HALF = 0.7071067811865476
_TANH_SCALE = 0.7978845608028654  # sqrt(2 / pi)
_TANH_CUBE = 0.044715

Replace = Callable[[Found], Any]


def recognise(flow: Dataflow, position: int) -> Any:
    """Rewrite the last operator of a formula as the operator that it computes."""
    formulas = _formulas().get(flow.operators[position])
    if not formulas:
        return None
    near = flow.before(position, max(traced.depth for traced, _ in formulas))
    for traced, replace in formulas:
        found = traced.match(flow, position, near)
        answer = None if found is None else replace(found)
        if answer is not None:
            return answer
    return None


@cache
def _formulas() -> Mapping[str, Sequence[tuple[Traced, Replace]]]:
    """Return every formula with what to put in its place, by the operator of its root."""
    by_tanh = [_one_plus_tanh(cube) for cube in (_cube_first, _cube_last, _cube_of_square)]
    graphs: list[tuple[Graph, Replace]] = [(_silu, _to_silu)]
    for halved in (_half_outside, _half_inside, _half_first):
        graphs.append((halved(_one_plus_erf), _to_gelu))
        graphs += [(halved(inner), _to_gelu_tanh) for inner in (*by_tanh, _one_plus_tanh_of)]
    graphs += [(_hard_sigmoid_of_six, _to_hard_sigmoid), (_hard_swish_of_six, _to_hard_swish)]
    graphs += [*_layer_norms(), *_rms_norms()]
    by_root: dict[str, list[tuple[Traced, Replace]]] = {}
    for graph, replace in graphs:
        traced = trace(graph)
        by_root.setdefault(traced.root, []).append((traced, replace))
    return by_root


def _silu(op: Any, x: Any) -> Any:
    return op.multiply(x, op.sigmoid(x))


def _to_silu(found: Found) -> Any:
    return relax.op.nn.silu(found.operands["x"])


def _one_plus_erf(op: Any, x: Any) -> Any:
    return op.add(op.erf(op.multiply(x, op.const(_SQRT_HALF))), op.const(1.0))


def _cube_first(op: Any, x: Any) -> Any:
    return op.multiply(op.multiply(op.multiply(x, x), x), op.const(_TANH_CUBE))


def _cube_last(op: Any, x: Any) -> Any:
    return op.multiply(x, op.multiply(x, op.multiply(x, op.const(_TANH_CUBE))))


def _cube_of_square(op: Any, x: Any) -> Any:
    return op.multiply(op.multiply(op.multiply(x, x), op.const(_TANH_CUBE)), x)


def _one_plus_tanh(scaled_cube: Graph) -> Graph:
    def graph(op: Any, x: Any) -> Any:
        inner = op.multiply(op.add(x, scaled_cube(op, x)), op.const(_TANH_SCALE))
        return op.add(op.tanh(inner), op.const(1.0))

    return graph


def _one_plus_tanh_of(op: Any, x: Any) -> Any:
    """The same cubic, factored: ``x * (1 + 0.044715 * x * x)``."""
    scaled = op.multiply(x, op.const(_TANH_SCALE))
    factor = op.add(op.multiply(op.multiply(x, x), op.const(_TANH_CUBE)), op.const(1.0))
    return op.add(op.tanh(op.multiply(scaled, factor)), op.const(1.0))


def _half_outside(inner: Graph) -> Graph:
    def graph(op: Any, x: Any) -> Any:
        return op.multiply(op.multiply(x, inner(op, x)), op.const(0.5))

    return graph


def _half_inside(inner: Graph) -> Graph:
    def graph(op: Any, x: Any) -> Any:
        return op.multiply(x, op.multiply(inner(op, x), op.const(0.5)))

    return graph


def _half_first(inner: Graph) -> Graph:
    def graph(op: Any, x: Any) -> Any:
        return op.multiply(op.multiply(x, op.const(0.5)), inner(op, x))

    return graph


def _to_gelu(found: Found) -> Any:
    return relax.op.nn.gelu(found.operands["x"])


def _to_gelu_tanh(found: Found) -> Any:
    return relax.op.nn.gelu_tanh(found.operands["x"])


def _hard_sigmoid_of_six(op: Any, x: Any) -> Any:
    return op.multiply(op.clip(op.add(x, op.const(3.0)), 0.0, 6.0), op.const(1 / 6))


def _to_hard_sigmoid(found: Found) -> Any:
    """Scale first, so that hard sigmoids of every origin read ``clip(x * a + b, 0, 1)``."""
    bounds = [float(bound.value) for bound in found.call("relax.clip").args[1:]]
    if bounds != [0.0, 6.0]:
        return None
    x = found.operands["x"]
    sixth, half = (to_constant(np.array(c), operators.dtype(x)) for c in (1 / 6, 0.5))
    return relax.op.clip(relax.op.add(relax.op.multiply(x, sixth), half), 0.0, 1.0)


def _hard_swish_of_six(op: Any, x: Any) -> Any:
    clipped = op.clip(op.add(x, op.const(3.0)), 0.0, 6.0)
    return op.multiply(op.multiply(x, clipped), op.const(1 / 6))


def _to_hard_swish(found: Found) -> Any:
    gate = _to_hard_sigmoid(found)
    return None if gate is None else relax.op.multiply(found.operands["x"], gate)


def _layer_norms() -> Iterator[tuple[Graph, Replace]]:
    """Yield layer norm with its root taken in both ways, with and without gain and offset."""
    for by_root in (True, False):

        def normed(op: Any, x: Any, epsilon: Any, *, by_root: bool = by_root) -> Any:
            centred = op.subtract(x, op.mean(x))
            variance = op.add(op.mean(op.multiply(centred, centred)), epsilon)
            if by_root:
                return op.divide(centred, op.sqrt(variance))
            return op.multiply(centred, op.rsqrt(variance))

        yield from _with_parameters(normed, ("gamma", "beta"), _to_layer_norm)


def _rms_norms() -> Iterator[tuple[Graph, Replace]]:
    """Yield RMS norm with its root taken in both ways, with and without its gain."""
    for by_root in (True, False):

        def normed(op: Any, x: Any, epsilon: Any, *, by_root: bool = by_root) -> Any:
            square = op.add(op.mean(op.multiply(x, x)), epsilon)
            if by_root:
                return op.divide(x, op.sqrt(square))
            return op.multiply(x, op.rsqrt(square))

        yield from _with_parameters(normed, ("gamma",), _to_rms_norm)


def _with_parameters(
    normed: Graph, names: tuple[str, ...], replace: Replace
) -> Iterator[tuple[Graph, Replace]]:
    """Yield a normalisation with all its parameters first, then with fewer."""

    def full(op: Any, x: Any, epsilon: Any, gamma: Any, beta: Any) -> Any:
        return op.add(op.multiply(normed(op, x, epsilon), gamma), beta)

    def scaled(op: Any, x: Any, epsilon: Any, gamma: Any) -> Any:
        return op.multiply(normed(op, x, epsilon), gamma)

    def bare(op: Any, x: Any, epsilon: Any) -> Any:
        return normed(op, x, epsilon)

    if "beta" in names:
        yield full, replace
    yield scaled, replace
    yield bare, replace


def _to_layer_norm(found: Found) -> Any:
    axes = _normalised_axes(found, ("gamma", "beta"))
    if axes is None:
        return None
    x, epsilon = found.operands["x"], _scalar(found.operands["epsilon"])
    gamma, beta = _parameter(found, "gamma", axes, 1.0), _parameter(found, "beta", axes, 0.0)
    return relax.op.nn.layer_norm(x, gamma, beta, axes, epsilon)


def _to_rms_norm(found: Found) -> Any:
    axes = _normalised_axes(found, ("gamma",))
    if axes is None:
        return None
    x, epsilon = found.operands["x"], _scalar(found.operands["epsilon"])
    return relax.op.nn.rms_norm(x, _parameter(found, "gamma", axes, 1.0), axes, epsilon)


def _parameter(found: Found, name: str, axes: Sequence[int], neutral: float) -> Any:
    """Return a parameter of a normalisation; where it is left out, one that does nothing."""
    if name in found.operands:
        return found.operands[name]
    x = found.operands["x"]
    shape = operators.shape(x) or ()
    return to_constant(np.full([int(shape[axis]) for axis in axes], neutral), operators.dtype(x))


def _normalised_axes(found: Found, parameters: tuple[str, ...]) -> list[int] | None:
    """Return the axes that the formula's means run over, None if it is no normalisation.

    They must be the last ones, and each parameter must have exactly their shape: one
    that is merely broadcast belongs to another formula.
    """
    shape = operators.shape(found.operands["x"])
    if shape is None or _scalar(found.operands["epsilon"]) is None:
        return None
    spans = {_reduced_axes(mean, len(shape)) for mean in found.calls("relax.mean")}
    if len(spans) != 1:
        return None
    axes = next(iter(spans))
    if not axes or axes != tuple(range(len(shape) - len(axes), len(shape))):
        return None
    wanted = tuple(shape[axis] for axis in axes)
    given = [found.operands[name] for name in parameters if name in found.operands]
    if any(operators.shape(parameter) != wanted for parameter in given):
        return None
    if len(given) < len(parameters) and not all(isinstance(extent, int) for extent in wanted):
        return None
    return [axis - len(shape) for axis in axes]


def _reduced_axes(mean: Any, rank: int) -> tuple[int, ...]:
    if not mean.attrs.keepdims:
        return ()
    axes = mean.attrs.axis
    return tuple(sorted(int(axis) % rank for axis in (range(rank) if axes is None else axes)))


def _scalar(expr: Any) -> float | None:
    value = constant(expr)
    return float(value.reshape(())) if value is not None and np.size(value) == 1 else None

"""Normalisation over the last axes with the sum before it and the scale after it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tvmfuse.patterns import operators, references
from tvmfuse.patterns.base import Case, Operand, Pattern
from tvmfuse.patterns.trace import Found

_OPERANDS: Mapping[str, Operand] = {
    "x": Operand((2, 3, 16)),
    "residual": Operand((2, 3, 16)),
    "gamma": Operand((16,), is_constant=True),
    "beta": Operand((16,), is_constant=True),
    "scale": Operand((2, 1, 16)),
}


def _case(name: str, *, is_added: bool, is_scaled: bool, norm: str = "layer_norm") -> Case:
    options = {"is_added": is_added, "is_scaled": is_scaled, "norm": norm}
    return Case(name, _OPERANDS, options)


def _sum_too(op: Any, x: Any, residual: Any, gamma: Any, beta: Any) -> Any:
    total = op.add(x, residual)
    return op.nn.layer_norm(total, gamma, beta, axes=[-1], epsilon=1e-5), total


def _sum_too_reference(x: Any, residual: Any, gamma: Any, beta: Any) -> Any:
    return references.layer_norm(x + residual, gamma, beta), x + residual


def _stretched_sum(op: Any, x: Any, residual: Any, gamma: Any, beta: Any) -> Any:
    return op.nn.layer_norm(op.add(x, residual), gamma, beta, axes=[-1], epsilon=1e-5)


def _sum_feeds_gamma(op: Any, x: Any, residual: Any, gamma: Any, beta: Any) -> Any:
    total = op.add(x, residual)
    other = op.sum(total, axis=[0, 1])
    return op.nn.layer_norm(total, other, beta, axes=[-1], epsilon=1e-5)


class AddLayerNorm(Pattern):
    """Layer or RMS normalisation, with a sum before it, a product after it, or both.

    The sum may be a second result: in a transformer it is the next residual.
    """

    name = "add_layer_norm"
    family = "reduction"
    is_multi_output = True
    cases = (
        _case("sum and layer norm", is_added=True, is_scaled=False),
        _case("layer norm and scale", is_added=False, is_scaled=True),
        _case("sum, layer norm and scale", is_added=True, is_scaled=True),
        _case("sum and RMS norm", is_added=True, is_scaled=False, norm="rms_norm"),
        Case("the sum is a result too", _OPERANDS, {}, _sum_too, _sum_too_reference),
    )
    near_misses = (
        Case(
            "the sum stretches one operand along the rows",
            {**_OPERANDS, "x": Operand((1, 3, 16)), "residual": Operand((2, 1, 16))},
            graph=_stretched_sum,
        ),
        Case(
            "what is added is one column",
            {**_OPERANDS, "residual": Operand((2, 3, 1))},
            graph=_stretched_sum,
        ),
        Case(
            "what is added to is one of several batches",
            {**_OPERANDS, "x": Operand((1, 3, 16))},
            graph=_stretched_sum,
        ),
        Case("the sum feeds the gain too", _OPERANDS, graph=_sum_feeds_gamma),
    )

    def options(self) -> Iterator[Mapping[str, Any]]:
        """Yield each normalisation with something before or after it."""
        for norm in ("layer_norm", "rms_norm"):
            yield {"norm": norm, "is_added": True, "is_scaled": False}
            yield {"norm": norm, "is_added": False, "is_scaled": True}
            yield {"norm": norm, "is_added": True, "is_scaled": True}

    def graph(
        self,
        op: Any,
        x: Any,
        residual: Any,
        gamma: Any,
        beta: Any,
        scale: Any,
        *,
        norm: str,
        is_added: bool,
        is_scaled: bool,
    ) -> Any:
        """Write the sum, the normalisation and the product."""
        y = op.add(x, residual) if is_added else x
        if norm == "layer_norm":
            y = op.nn.layer_norm(y, gamma, beta, axes=[-1], epsilon=1e-5)
        else:
            y = op.nn.rms_norm(y, gamma, axes=[-1], epsilon=1e-5)
        return op.multiply(y, scale) if is_scaled else y

    def reference(
        self,
        x: Any,
        residual: Any,
        gamma: Any,
        beta: Any,
        scale: Any,
        *,
        norm: str,
        is_added: bool,
        is_scaled: bool,
    ) -> Any:
        """Compute it with NumPy."""
        y = x + residual if is_added else x
        if norm == "layer_norm":
            y = references.layer_norm(y, gamma, beta)
        else:
            y = references.rms_norm(y, gamma)
        return y * scale if is_scaled else y

    def check(self, found: Found) -> str:
        """A row must be read once: what is added has the shape of what is normalised."""
        shape = operators.shape(found.root)
        for name in ("x", "residual"):
            operand = found.operands.get(name)
            if operand is not None and not _is_row_like(operators.shape(operand), shape):
                return f"its {name} is stretched along the rows"
        return ""


def _is_row_like(shape: Any, whole: Any) -> bool:
    """Tell whether an operand is a whole tensor or one row that all rows share."""
    return shape is not None and (shape == whole or shape == whole[len(whole) - len(shape) :])

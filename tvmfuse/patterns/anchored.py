"""What may follow a convolution or a matrix product in the same kernel.

Scale, bias, residual and activation, in the orders that networks use: shared by
the patterns of both, as graph, in NumPy, and as a check of the operands' shapes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from types import MappingProxyType
from typing import Any

from tvmfuse.patterns import operators
from tvmfuse.patterns.activations import ACTIVATIONS
from tvmfuse.patterns.trace import Found

NOTHING: Mapping[str, Any] = MappingProxyType(
    {"is_scaled": False, "is_biased": False, "residual_at": None, "activation": None}
)
"""The options of an anchor alone."""


def options() -> Iterator[Mapping[str, Any]]:
    """Yield every combination that has something after the anchor.

    Networks add the residual before the activation (ResNet) or after it (YOLO).
    """
    choices = ((False, True), (False, True), (None, "before", "after"), (None, *ACTIVATIONS))
    for chosen in product(*choices):
        is_scaled, is_biased, residual_at, activation = chosen
        if any(chosen) and not (residual_at == "after" and activation is None):
            yield {
                "is_scaled": is_scaled,
                "is_biased": is_biased,
                "residual_at": residual_at,
                "activation": activation,
            }


def followed(op: Any, y: Any, extra: tuple[Any, ...], chosen: Mapping[str, Any]) -> Any:
    """Write what follows the anchor's result ``y``.

    Parameters
    ----------
    op : Tracer or Builder
        Stands for ``relax.op``.
    y : pattern or expression
        Result of the anchor.
    extra : tuple
        The operands scale, bias, residual and slope.
    chosen : Mapping
        One of :func:`options`.
    """
    scale, bias, residual, slope = extra
    if chosen["is_scaled"]:
        y = op.multiply(y, scale)
    if chosen["is_biased"]:
        y = op.add(y, bias)
    if chosen["residual_at"] == "before":
        y = op.add(y, residual)
    if chosen["activation"]:
        y = ACTIVATIONS[chosen["activation"]].graph(op, y, slope)
    if chosen["residual_at"] == "after":
        y = op.add(y, residual)
    return y


def followed_reference(y: Any, extra: tuple[Any, ...], chosen: Mapping[str, Any]) -> Any:
    """Compute :func:`followed` with NumPy."""
    scale, bias, residual, slope = extra
    if chosen["is_scaled"]:
        y = y * scale
    if chosen["is_biased"]:
        y = y + bias
    if chosen["residual_at"] == "before":
        y = y + residual
    if chosen["activation"]:
        y = ACTIVATIONS[chosen["activation"]].reference(y, slope)
    if chosen["residual_at"] == "after":
        y = y + residual
    return y


def check(found: Found, *, channel_axis: int) -> str:
    """Say which operand has a shape that its part does not have; "" where all fit.

    Parameters
    ----------
    found : Found
        A match of :func:`followed`.
    channel_axis : int
        Axis of the output channels in the result.
    """
    shape = operators.shape(found.root)
    if shape is None:
        return "the shape of its result is not known"
    channels = tuple(extent if i == channel_axis else 1 for i, extent in enumerate(shape))
    for name in ("scale", "bias"):
        if name in found.operands and not _stretches_to(found.operands[name], channels):
            return f"its {name} must vary along the channels only"
    residual = found.operands.get("residual")
    if found.flow.position.get(residual) in found.members:
        return "its residual is computed from the anchor"
    if residual is not None and operators.shape(residual) != shape:
        return "its residual must have the shape of the result"
    return ""


def _stretches_to(operand: Any, channels: tuple[int | str, ...]) -> bool:
    shape = operators.shape(operand)
    if shape is None or len(shape) > len(channels):
        return False
    padded = (1,) * (len(channels) - len(shape)) + shape
    return all(extent in (1, wide) for extent, wide in zip(padded, channels, strict=True))

"""Convolution, folded batch norm, residual and activation in one kernel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

from tvmfuse.patterns import anchored, references
from tvmfuse.patterns.activations import ACTIVATIONS
from tvmfuse.patterns.base import Case, Operand, Pattern
from tvmfuse.patterns.trace import Found


def _case(name: str, *, conv: Mapping[str, Any] | None = None, **chosen: Any) -> Case:
    """Return a case on 6 channels of 7 x 9 with 8 filters of 3 x 3."""
    conv = {"padding": (1, 1, 1, 1)} if conv is None else conv
    channels = Operand((8, 1, 1), is_constant=True)
    operands = {
        "x": Operand((2, 6, 7, 9)),
        "weight": Operand((8, 6 // conv.get("groups", 1), 3, 3), is_constant=True, spread=0.15),
        "scale": channels,
        "bias": Operand((1, 8, 1, 1), is_constant=True),
        "residual": Operand((2, 8, 7, 9)),
        "slope": Operand((8,), is_constant=True),
    }
    return Case(name, operands, {**anchored.NOTHING, "conv": conv, **chosen})


def _cases() -> tuple[Case, ...]:
    activated = [
        _case(activation, is_biased=True, activation=activation) for activation in ACTIVATIONS
    ]
    return (
        *activated,
        _case("bias alone", is_biased=True),
        _case("scale and bias of a batch norm", is_scaled=True, is_biased=True, activation="relu"),
        _case("residual before relu", is_biased=True, residual_at="before", activation="relu"),
        _case("residual after silu", is_biased=True, residual_at="after", activation="silu"),
        _case("grouped", conv={"groups": 2, "padding": (1, 1, 1, 1)}, residual_at="before"),
        _case(
            "strided, dilated, unevenly padded",
            conv={"strides": (2, 1), "dilation": (1, 2), "padding": (0, 1, 2, 3)},
            activation="relu",
        ),
        replace(
            _case(
                "depthwise with more filters than channels",
                conv={"groups": 4, "padding": (1, 1, 1, 1)},
                is_biased=True,
                activation="clip",
            ),
            operands={
                "x": Operand((1, 4, 5, 5)),
                "weight": Operand((8, 1, 3, 3), is_constant=True, spread=0.3),
                "bias": Operand((8, 1, 1), is_constant=True),
            },
        ),
        replace(
            _case(
                "channels last",
                conv={"data_layout": "NHWC", "kernel_layout": "HWIO"},
                is_biased=True,
                activation="relu",
            ),
            operands={
                "x": Operand((1, 5, 6, 3)),
                "weight": Operand((1, 1, 3, 8), is_constant=True),
                "bias": Operand((8,), is_constant=True),
            },
        ),
    )


def _also_returned(op: Any, x: Any, weight: Any) -> Any:
    y = op.nn.conv2d(x, weight)
    return op.nn.relu(y), y


def _gated_by_itself(op: Any, x: Any, weight: Any) -> Any:
    y = op.nn.conv2d(x, weight)
    return op.nn.relu(op.add(y, op.sigmoid(y)))


def _in_blocks(op: Any, x: Any, weight: Any) -> Any:
    layouts = {"data_layout": "NCHW4c", "kernel_layout": "OIHW4i4o", "out_layout": "NCHW4c"}
    return op.nn.relu(op.nn.conv2d(x, weight, **layouts))


def _offset_by_column(op: Any, x: Any, weight: Any, bias: Any) -> Any:
    return op.nn.relu(op.add(op.nn.conv2d(x, weight), bias))


def _near_misses() -> tuple[Case, ...]:
    operands = {
        "x": Operand((1, 3, 6, 6)),
        "weight": Operand((4, 3, 1, 1), is_constant=True),
        "bias": Operand((1, 1, 1, 6), is_constant=True),
    }
    return (
        Case("the result of the convolution is an output", operands, graph=_also_returned),
        Case("the residual depends on the convolution", operands, graph=_gated_by_itself),
        Case("the bias varies along the width", operands, graph=_offset_by_column),
        Case(
            "channels stand in blocks",
            {"x": Operand((1, 2, 5, 5, 4)), "weight": Operand((2, 2, 1, 1, 4, 4))},
            graph=_in_blocks,
        ),
        Case(
            "the scale varies along the height",
            {**operands, "scale": Operand((1, 1, 6, 1))},
            {**anchored.NOTHING, "is_scaled": True, "activation": "relu"},
        ),
        Case(
            "the residual has one channel",
            {**operands, "bias": Operand((4, 1, 1)), "residual": Operand((1, 1, 6, 6))},
            {
                **anchored.NOTHING,
                "is_biased": True,
                "residual_at": "before",
                "activation": "relu",
            },
        ),
    )


class ConvBnAct(Pattern):
    """A 2-d convolution and what follows it.

    Scale and bias are what is left of a batch norm; the scale is only there where the
    weight is no constant.
    """

    name = "conv_bn_act"
    family = "conv2d"

    cases = _cases()
    near_misses = _near_misses()

    def options(self) -> Iterator[Mapping[str, Any]]:
        """Yield the variants of what follows."""
        return anchored.options()

    def graph(
        self,
        op: Any,
        x: Any,
        weight: Any,
        scale: Any,
        bias: Any,
        residual: Any,
        slope: Any,
        *,
        conv: Mapping[str, Any] | None = None,
        **chosen: Any,
    ) -> Any:
        """Write the convolution, then scale, bias, residual and activation."""
        y = op.nn.conv2d(x, weight, **(conv or {}))
        return anchored.followed(op, y, (scale, bias, residual, slope), chosen)

    def reference(
        self,
        x: Any,
        weight: Any,
        scale: Any,
        bias: Any,
        residual: Any,
        slope: Any,
        *,
        conv: Mapping[str, Any] | None = None,
        **chosen: Any,
    ) -> Any:
        """Compute it tap by tap, NCHW or NHWC."""
        y = references.conv2d(x, weight, **(conv or {}))
        return anchored.followed_reference(y, (scale, bias, residual, slope), chosen)

    def check(self, found: Found) -> str:
        """Look at the shapes of scale, bias and residual."""
        attrs = found.call("relax.nn.conv2d").attrs
        layout = str(attrs.out_layout or attrs.data_layout)
        if len(layout) != 4:
            return f"its layout {layout} keeps channels in blocks"
        return anchored.check(found, channel_axis=layout.index("C"))

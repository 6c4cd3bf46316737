"""Group normalisation with the sum before it and the activation after it.

Diffusion models, U-Nets and recent convolutional networks: ``silu(group_norm(x))``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

from tvmfuse.patterns import operators, references
from tvmfuse.patterns.activations import ACTIVATIONS
from tvmfuse.patterns.base import Case, Operand, Pattern
from tvmfuse.patterns.trace import Found

_ACTIVATIONS = ("silu", "relu", "gelu", "sigmoid", "hard_swish", "leaky_relu", "tanh")
_GROUPS = 3
_OPERANDS: Mapping[str, Operand] = {
    "x": Operand((2, 12, 5, 7)),
    "added": Operand((2, 12, 1, 1)),
    "gamma": Operand((12,), is_constant=True),
    "beta": Operand((12,), is_constant=True),
}


def _case(name: str, *, activation: str | None, is_added: bool = False) -> Case:
    return Case(name, _OPERANDS, {"activation": activation, "is_added": is_added})


def _norm(op: Any, x: Any, gamma: Any, beta: Any, **changed: Any) -> Any:
    given = {"num_groups": _GROUPS, "channel_axis": 1, "axes": [2, 3], "epsilon": 1e-5, **changed}
    return op.nn.group_norm(x, gamma, beta, **given)


def _of_a_row(op: Any, x: Any, gamma: Any, beta: Any) -> Any:
    return op.nn.silu(_norm(op, x, gamma, beta, axes=[2]))


def _of_a_row_reference(x: Any, gamma: Any, beta: Any) -> Any:
    return ACTIVATIONS["silu"].reference(
        references.group_norm(x, gamma, beta, groups=_GROUPS), None
    )


def _channels_last(op: Any, x: Any, gamma: Any, beta: Any) -> Any:
    return op.nn.silu(_norm(op, x, gamma, beta, channel_axis=3, axes=[1, 2]))


def _over_one_axis(op: Any, x: Any, gamma: Any, beta: Any) -> Any:
    return op.nn.silu(_norm(op, x, gamma, beta, axes=[3]))


def _read_twice(op: Any, x: Any, gamma: Any, beta: Any) -> Any:
    y = _norm(op, x, gamma, beta)
    return op.nn.silu(y), op.mean(y, axis=[1])


class GroupNormAct(Pattern):
    """``act(group_norm(x + y))``, without the sum or without the activation."""

    name = "group_norm_act"
    family = "reduction"
    cases = (
        *(_case(name, activation=name) for name in _ACTIVATIONS),
        _case("an embedding of the time step is added first", activation="silu", is_added=True),
        _case("sum alone", activation=None, is_added=True),
        Case(
            "channels of a row",
            {**_OPERANDS, "x": Operand((2, 12, 35))},
            graph=_of_a_row,
            reference=_of_a_row_reference,
        ),
    )
    near_misses = (
        Case(
            "channels stand last",
            {**_OPERANDS, "x": Operand((2, 5, 7, 12))},
            graph=_channels_last,
        ),
        Case(
            "channels stand first",
            {**_OPERANDS, "x": Operand((12, 2, 5, 7))},
            graph=lambda op, x, gamma, beta: op.nn.silu(_norm(op, x, gamma, beta, channel_axis=0)),
        ),
        Case("the statistics run over one axis only", _OPERANDS, graph=_over_one_axis),
        Case("the normalised tensor is read elsewhere", _OPERANDS, graph=_read_twice),
        Case(
            "the sum stretches what is normalised",
            {**_OPERANDS, "x": Operand((1, 12, 5, 7))},
            {"activation": "silu", "is_added": True},
        ),
    )

    def options(self) -> Iterator[Mapping[str, Any]]:
        """Yield every activation, with a sum first and without, and the sum alone."""
        for activation, is_added in product((None, *_ACTIVATIONS), (False, True)):
            if activation or is_added:
                yield {"activation": activation, "is_added": is_added}

    def graph(
        self,
        op: Any,
        x: Any,
        added: Any,
        gamma: Any,
        beta: Any,
        *,
        activation: str | None,
        is_added: bool,
    ) -> Any:
        """Write the sum, the normalisation and the activation."""
        y = _norm(op, op.add(x, added) if is_added else x, gamma, beta)
        return ACTIVATIONS[activation].graph(op, y, None) if activation else y

    def reference(
        self,
        x: Any,
        added: Any,
        gamma: Any,
        beta: Any,
        *,
        activation: str | None,
        is_added: bool,
    ) -> Any:
        """Compute it with NumPy."""
        y = references.group_norm(x + added if is_added else x, gamma, beta, groups=_GROUPS)
        return ACTIVATIONS[activation].reference(y, None) if activation else y

    def check(self, found: Found) -> str:
        """Channels stand second, all that follows them is normalised, and x is not stretched."""
        norm = found.call("relax.nn.group_norm")
        rank = int(norm.ty.ndim)
        if int(norm.attrs.channel_axis) % rank != 1:
            return "its channels must be axis 1"
        if sorted(int(axis) % rank for axis in norm.attrs.axes) != list(range(2, rank)):
            return "it must normalise over all axes behind the channels"
        if operators.shape(found.operands["x"]) != operators.shape(found.root):
            return "its x is stretched"
        return ""

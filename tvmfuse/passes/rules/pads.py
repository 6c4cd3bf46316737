"""Padding goes into the convolution that reads it, whose kernels pad as they read."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfuse._tvm import relax
from tvmfuse.patterns.dataflow import Dataflow

_CONVOLUTIONS = ("relax.nn.conv1d", "relax.nn.conv2d")


def padding_of_convolution(flow: Dataflow, position: int) -> Any:
    """Rewrite ``conv(pad(x))`` as a convolution that pads, where zeros surround the image.

    Importers write padding of their own where it differs from side to side.
    """
    operator, call = flow.operators[position], flow.value(position)
    if operator not in _CONVOLUTIONS or not str(call.attrs.data_layout).startswith("NC"):
        return None
    source = flow.position.get(call.args[0])
    if source is None or flow.operators[source] != "relax.nn.pad":
        return None
    pad = flow.value(source)
    widths = [int(width) for width in pad.attrs.pad_width]
    is_plain = str(pad.attrs.pad_mode) == "constant" and float(pad.attrs.pad_value) == 0
    if not is_plain or any(widths[:4]) or min(widths) < 0:
        return None
    added = [*widths[4::2], *widths[5::2]]  # before every axis, then after every axis
    padding = [a + b for a, b in zip(_both(call.attrs.padding, len(added)), added, strict=True)]
    attrs = call.attrs
    convolve = getattr(relax.op.nn, operator.removeprefix("relax.nn."))
    return convolve(
        pad.args[0],
        call.args[1],
        strides=list(attrs.strides),
        padding=padding,
        dilation=list(attrs.dilation),
        groups=int(attrs.groups),
        data_layout=str(attrs.data_layout),
        kernel_layout=str(attrs.kernel_layout),
        out_layout=str(attrs.out_layout),
        out_dtype=str(call.ty.dtype),
    )


def _both(padding: Sequence[Any], count: int) -> list[int]:
    """Return the padding before and after every axis; half as many numbers hold for both."""
    given = [int(width) for width in padding]
    return given if len(given) == count else given * 2

"""A stage and the anchor that reads it, with what stands between and behind them."""

from __future__ import annotations

from collections.abc import Iterator

from tvmfuse._tvm import tvm
from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Match
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.epilogue import prefixes

_IMAGE_RANK = 4
_LAYOUTS = ("data_layout", "layout")

FAMILY = "chained"
"""Kernels that keep the first anchor's result on chip."""


def chains(flow: Dataflow, first: int) -> Iterator[tuple[int, tuple[int, ...]]]:
    """Yield the binding that alone reads what an anchor and its epilogue compute, and these.

    Parameters
    ----------
    flow : Dataflow
        The function.
    first : int
        The anchor.
    """
    for members in ((first,), *prefixes(flow, first)):
        (last,) = flow.outputs(members)
        if last not in flow.escaping and len(flow.users[last]) == 1:
            yield flow.users[last][0], members


def matches(flow: Dataflow, members: tuple[int, ...], second: int) -> Iterator[Match]:
    """Yield an anchor and its epilogue with the second anchor, and ever more of what follows."""
    for behind in ((second,), *prefixes(flow, second)):
        yield Match(tuple(sorted({*members, *behind})), FAMILY)


def is_packed_conv(flow: Dataflow, position: int) -> bool:
    """Whether a binding convolves a float32 image of known extents with constant weights."""
    if flow.operators[position] != "relax.nn.conv2d":
        return False
    call = flow.value(position)
    is_constant = isinstance(call.args[1], tvm.ir.GenericConst)
    return is_constant and is_image(flow, position) and str(call.attrs.kernel_layout) == "OIHW"


def is_whole_pointwise(flow: Dataflow, position: int) -> bool:
    """Whether a binding is a packed convolution of 1 x 1 that reads every channel and pixel."""
    if not is_packed_conv(flow, position):
        return False
    call = flow.value(position)
    is_one_pixel = (operators.shape(call.args[1]) or ())[2:] == (1, 1)
    is_whole = set(map(int, call.attrs.strides)) == {1} and not any(map(int, call.attrs.padding))
    return is_one_pixel and is_whole and int(call.attrs.groups) == 1


def is_image(flow: Dataflow, position: int) -> bool:
    """Whether a binding makes a float32 image of known extents, channels first."""
    call = flow.value(position)
    shape = operators.shape(call)
    if shape is None or len(shape) != _IMAGE_RANK or not flow.groupable[position]:
        return False
    layout = next((getattr(call.attrs, n) for n in _LAYOUTS if hasattr(call.attrs, n)), "NCHW")
    is_first = {str(layout), str(getattr(call.attrs, "out_layout", "") or layout)} == {"NCHW"}
    is_static = all(isinstance(extent, int) and extent > 0 for extent in shape)
    return is_static and is_first and operators.dtype(call) == "float32"

"""Convolutions of planes as they lie, and when that is cheaper than channel blocks.

Blocks make every convolution fast, but plain tensors have to be copied into them and
back. Regions of a graph that are short of work for that (one convolution, an island
between operators that have no form in blocks) stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from tvmfuse.kernels import half, integer_conv
from tvmfuse.kernels import planes as depthwise_kernel
from tvmfuse.kernels import pointwise as pointwise_kernel
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import Machine, ceil_div, round_up
from tvmfuse.passes.layout.forms import PLAIN, Converted, FilterPanels, Form
from tvmfuse.passes.layout.geometry import kernel, require_channels_first, window_of
from tvmfuse.passes.layout.integer import is_integer
from tvmfuse.passes.layout.matmul import matmul
from tvmfuse.passes.layout.rewrite import (
    Expr,
    NotRewritable,
    Rewriter,
    Rule,
    Var,
    dtypes,
    operator,
    shape_of,
)
from tvmfuse.passes.layout.shapes import Shape

# Half-cycles, as in kernels/tiling.py; measured on Zen 4 and on Sapphire Rapids.
_COPY_ELEMENT = 3.0  # of a copy between planes and blocks
_COPY = 1e4  # of starting it
_DEPTHWISE_ROW = 20.0  # of the scratch plane: its edges, and vectors cut short
_PACK_ELEMENT = 2.5  # one by one; a vector takes as long
_RAGGED_PANEL = 1.5  # pixels that fill no panel are packed and written one by one
_IMAGE_RANK = 4


@dataclass(frozen=True)
class Cost:
    """Half-cycles of a group over blocks and over planes; of what differs between them."""

    blocks: float = 0.0
    planes: float = 0.0

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.blocks + other.blocks, self.planes + other.planes)


ONLY_BLOCKS = Cost(0.0, math.inf)


def copy_cost(shape: Shape) -> Cost:
    """Return what copying a tensor into blocks, or out of them, costs."""
    return Cost(blocks=_COPY + _COPY_ELEMENT * math.prod(shape))


def cost_of(function: Any, constants: frozenset[int], machine: Machine) -> Cost:
    """Return what a group costs that works on channel blocks, and what it would on planes.

    Parameters
    ----------
    function : relax.Function
        The group.
    constants : frozenset of int
        Positions of its parameters that are known when compiling.
    machine : Machine
        The device.
    """
    known = [param for i, param in enumerate(function.params) if i in constants]
    total = Cost()
    for binding in function.body.blocks[0].bindings:
        name = operator(binding.value)
        if name.startswith("relax.nn.conv"):
            is_constant = any(binding.value.args[1].same_as(param) for param in known)
            total += _conv_cost(binding.value, binding.var, machine, is_constant=is_constant)
        elif "pool" in name or name == "relax.concat":
            total += ONLY_BLOCKS
    return total


def _conv_cost(call: Any, var: Var, machine: Machine, *, is_constant: bool) -> Cost:
    try:
        window, kind = _read(call, var)
    except NotRewritable:
        return ONLY_BLOCKS
    _, channels, height, _ = shape_of(call.args[0])
    batch, filters, *out = shape_of(var)
    pixels = math.prod(out)
    if kind == "depthwise":
        taps = math.prod(window.kernel)
        sums = batch * filters * out[0] * round_up(out[1] * window.strides[1], machine.lanes)
        rows = _DEPTHWISE_ROW * batch * channels * height
        return Cost(
            blocks=batch * pixels * taps * round_up(filters, machine.block) / machine.lanes,
            planes=sums * taps / machine.lanes + rows,
        )
    if not is_constant:
        return ONLY_BLOCKS
    tile = pointwise_kernel.tile(filters, pixels, machine)
    ragged = _RAGGED_PANEL if pixels % tile.columns else 1.0
    packing = _PACK_ELEMENT / (machine.lanes if window.strides[1] == 1 else 1)
    panels = ceil_div(pixels, tile.columns) * tile.columns * round_up(filters, tile.rows)
    per_sum = batch * channels / machine.lanes
    return Cost(
        blocks=per_sum * pixels * round_up(filters, machine.block),
        planes=ragged * per_sum * panels + packing * batch * channels * pixels,
    )


def conv(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Convolve planes, each channel by itself or each pixel by itself."""
    x, weight = call.args
    window, kind = _read(call, var)
    if kind == "depthwise":
        return _depthwise(rewriter, call, window), PLAIN
    source = rewriter.take(x, PLAIN)
    if not rewriter.is_constant(weight):
        raise NotRewritable("the weight of 1 x 1 is packed only when it is constant")
    _, filters, *out = shape_of(var)
    tile = pointwise_kernel.tile(filters, math.prod(out), rewriter.machine)
    args = [source, rewriter.take(weight, FilterPanels(tile.rows))]
    emit = _narrowed(pointwise_kernel.emit, x)
    return kernel(rewriter, args, emit, window, name="pointwise_conv", filters=filters), PLAIN


def _depthwise(rewriter: Rewriter, call: Any, window: Window) -> Expr:
    x, weight = call.args
    dtype, name = str(weight.ty.dtype), "depthwise_conv"
    is_integer = dtype not in half.FLOATS
    if is_integer and not rewriter.is_constant(weight):
        raise NotRewritable("an integer convolution needs a constant weight")
    sums = integer_conv.depthwise_dtype(dtype, window) if is_integer else "float32"
    form = Converted(sums) if sums != dtype and rewriter.is_constant(weight) else PLAIN
    taken = rewriter.take(weight, form)
    if not is_integer:
        emit = _narrowed(depthwise_kernel.emit, x)
        return kernel(rewriter, [rewriter.take(x, PLAIN), taken], emit, window, name=name)
    image, window, fill = _padded(rewriter, x, window)
    args = [rewriter.take(image, PLAIN), taken]
    return kernel(rewriter, args, integer_conv.emit_planes, window, name=name, fill=fill)


def _narrowed(emit: Callable[..., Any], x: Expr) -> Callable[..., Any]:
    """Let ``emit`` return numbers of the type of ``x``."""
    dtype = str(x.ty.dtype)
    return lambda *args, **more: half.narrowed(emit(*args, **more), dtype)


def _padded(rewriter: Rewriter, x: Expr, window: Window) -> tuple[Expr, Window, float]:
    """Look through the padding that a group begins with: the scratch plane has it.

    Returns
    -------
    tuple
        The image, the window over it, and the value around it.
    """
    pad = rewriter.definition(x)
    if operator(pad) != "relax.nn.pad" or any(window.padding):
        return x, window, 0.0
    widths = [int(width) for width in pad.attrs.pad_width]
    if str(pad.attrs.pad_mode) != "constant" or any(widths[:4]) or min(widths) < 0:
        return x, window, 0.0
    around = (widths[4], widths[6], widths[5], widths[7])
    return pad.args[0], replace(window, padding=around), float(pad.attrs.pad_value)


def _read(call: Any, var: Var) -> tuple[Window, str]:
    """Return the window of a convolution that planes have a kernel for, and which one.

    Raises
    ------
    NotRewritable
        They have none.
    """
    x, weight = call.args
    if operator(call) != "relax.nn.conv2d" or str(call.attrs.kernel_layout) != "OIHW":
        raise NotRewritable("only images are convolved as planes")
    require_channels_first(call.attrs)
    window = window_of(call.attrs, shape_of(weight)[2:])
    channels, groups = shape_of(x)[1], int(call.attrs.groups)
    if 0 in (*shape_of(x), *shape_of(var)):
        raise NotRewritable("empty images have no planes")
    types = dtypes([x, weight, var])
    is_float = len(types) == 1 and types <= set(half.FLOATS)
    is_depthwise = groups > 1 and groups == channels == shape_of(var)[1]
    if is_depthwise and (is_float or is_integer(x, weight, var)):
        return window, "depthwise"
    is_pointwise = groups == 1 and window.kernel == (1, 1) and not any(window.padding)
    if is_pointwise and is_float:
        return window, "pointwise"
    raise NotRewritable("this convolution has no kernel for planes")


RULES: Mapping[str, Rule] = {"relax.nn.conv2d": conv, "relax.matmul": matmul}
"""Rules for groups that work on planes; all other operators stay as they are."""

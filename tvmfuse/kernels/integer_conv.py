"""Convolution of 8-bit channel blocks by a packed constant weight, exact in int32.

The schedule is that of :mod:`.conv`. Every task copies the pixels that it needs into a
scratch image, in the type that the instruction wants and with whole words of channels.
Padding reads as zero, so a zero point other than 0 must be padded with before.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import numpy as np

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import planes
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE
from tvmfuse.kernels.gemm.dots import DOT
from tvmfuse.kernels.gemm.integer import IntegerPlan, fitted, shifted
from tvmfuse.kernels.grouped import Groups
from tvmfuse.kernels.image import Window, converted
from tvmfuse.kernels.tiling import Machine, ceil_div, conv_tile, round_up
from tvmfuse.kernels.window import emit as emit_window

Tensor = Any  # te.Tensor

_LARGEST_PRODUCT = 255 * 128
_WHOLE_FLOATS = 1 << 24  # up to there, float32 holds every whole number


def pack_conv(weight: np.ndarray, block_in: int, block_out: int, chosen: IntegerPlan) -> np.ndarray:
    """Lay an integer weight out in words of channels.

    Parameters
    ----------
    weight : np.ndarray
        (out, in, kh, kw).
    block_in, block_out : int
        Channels in one block.
    chosen : IntegerPlan
        How it is multiplied.

    Returns
    -------
    np.ndarray
        (out / block_out, in / block_in, kh, kw, block_in / group, block_out, group),
        rounded up and filled with zeros.
    """
    o, i, kh, kw = weight.shape
    blocks, words = ceil_div(i, block_in), ceil_div(block_in, chosen.group)
    outer = ceil_div(o, block_out)
    full = np.zeros((outer * block_out, blocks, words * chosen.group, kh, kw), chosen.column_dtype)
    padded = np.zeros((o, blocks * block_in, kh, kw), chosen.column_dtype)
    padded[:, :i] = weight
    full[:o, :, :block_in] = padded.reshape(o, blocks, block_in, kh, kw)
    parts = full.reshape(outer, block_out, blocks, words, chosen.group, kh, kw)
    return np.ascontiguousarray(parts.transpose(0, 2, 5, 6, 3, 1, 4))


def spread(weight: np.ndarray, groups: Groups) -> np.ndarray:
    """Lay a weight of groups out as one of the neighbouring blocks that an output block reads.

    Parameters
    ----------
    weight : np.ndarray
        (out, in of a group, kh, kw).
    groups : Groups
        Which channels belong together.

    Returns
    -------
    np.ndarray
        (out, reach * block, kh, kw), zero where the groups differ.
    """
    o, _, *window = weight.shape
    full = np.zeros((o, groups.reach * groups.block, *window), weight.dtype)
    full[groups.places()] = weight
    return full


def channel_sums(weight: np.ndarray, block: int) -> np.ndarray:
    """Return the sums of a weight (out, ...) for each output channel, in blocks.

    Returns
    -------
    np.ndarray
        (1, out / block, 1, 1, block), int32.
    """
    o = weight.shape[0]
    sums = np.zeros(round_up(o, block), np.int32)
    sums[:o] = weight.reshape(o, -1).sum(axis=1, dtype=np.int32)
    return sums.reshape(1, -1, 1, 1, block)


def emit(
    x: Tensor,
    weight: Tensor,
    sums: Tensor | None,
    window: Window,
    chosen: IntegerPlan,
    machine: Machine,
    *,
    groups: Groups | None = None,
) -> Tensor:
    """Emit a convolution of integers.

    Parameters
    ----------
    x : te.Tensor
        (n, in / b, height, width, b), int8 or uint8.
    weight : te.Tensor
        What :func:`pack_conv` returns.
    sums : te.Tensor or None
        What :func:`channel_sums` returns; needed where ``chosen`` shifts the pixels.
    window : Window
        Geometry.
    chosen : IntegerPlan
        What :func:`gemm.integer.plan` returned.
    machine : Machine
        The device.
    groups : Groups, optional
        Which channels belong together, where not all do.

    Returns
    -------
    te.Tensor
        (n, out / b, out height, out width, b), int32.
    """
    batch, blocks, height, width, _ = (int(d) for d in x.shape)
    out_blocks, reach, kernel_h, kernel_w, words, block_out, group = (int(d) for d in weight.shape)
    out_h, out_w = window.out(height, width)
    depth = reach * kernel_h * kernel_w * words
    flat = window.is_pointwise
    size = (1, out_h * out_w) if flat else (out_h, out_w)
    tile = conv_tile(
        *size, groups.sharing if groups else out_blocks, fitted(machine, chosen), depth=depth
    )
    rows, columns = round_up(size[0], tile.height), round_up(size[1], tile.width)
    image = _image(x, window, rows, columns, words * group, chosen)
    c, word = te.reduce_axis((0, reach), "c"), te.reduce_axis((0, words), "word")
    kh, kw = te.reduce_axis((0, kernel_h), "kh"), te.reduce_axis((0, kernel_w), "kw")
    part = te.reduce_axis((0, group), "part")
    (sh, sw), (dh, dw) = window.strides, window.dilation

    def product(n: Any, o: Any, *at: Any) -> Any:
        *pixel, oi = at
        h, w = (0, pixel[0]) if flat else pixel
        block = te.min(groups.first(o) + c, blocks - 1) if groups else c
        left = image[n, block, h * sh + kh * dh, w * sw + kw * dw, word * group + part]
        right = weight[o, c, kh, kw, word, oi, part]
        return te.sum(left.astype("int32") * right.astype("int32"), axis=[c, kh, kw, word, part])

    sizes = [tile.height, tile.width, tile.blocks]
    attrs = {FAMILY: "conv", ROLE: "anchor", TILE: sizes, DOT: chosen.dot}
    shape = (batch, out_blocks, *((columns,) if flat else (rows, columns)), block_out)
    result = te.compute(shape, product, name="conv2d", attrs=attrs)

    def cropped(n: Any, o: Any, h: Any, w: Any, oi: Any) -> Any:
        value = result[n, o, h * out_w + w, oi] if flat else result[n, o, h, w, oi]
        if sums is None or not chosen.shift:
            return value
        return value - sums[0, o, 0, 0, oi] * tirx.const(chosen.shift, "int32")

    return te.compute((batch, out_blocks, out_h, out_w, block_out), cropped, name="crop")


def depthwise_dtype(weight_dtype: str, window: Window) -> str:
    """Return the type in which the sums of a depthwise window are exact, and fastest."""
    largest = _LARGEST_PRODUCT * math.prod(window.kernel)
    return "float32" if weight_dtype == "int8" and largest <= _WHOLE_FLOATS else "int32"


def emit_depthwise(x: Tensor, weight: Tensor, window: Window, machine: Machine) -> Tensor:
    """Emit a depthwise convolution of integers.

    There are no words of channels to add up, and a multiplication of int32 takes as long as
    two of float32: where float32 holds every sum, the pixels are converted once.

    Parameters
    ----------
    x : te.Tensor
        (n, channels / b, height, width, b), int8 or uint8.
    weight : te.Tensor
        (channels / b, kh, kw, b), in the type of the sums.
    window : Window
        Geometry.
    machine : Machine
        The device.

    Returns
    -------
    te.Tensor
        (n, channels / b, out height, out width, b), int32.
    """

    def combine(at: Any, kh: Any, kw: Any, c: Any, ci: Any) -> Any:
        return te.sum(at * weight[c, kh, kw, ci], axis=[kh, kw])

    pad = partial(converted, dtype=str(weight.dtype))
    sums = emit_window(x, window, machine, combine, fill=0.0, pad=pad)
    return te.compute(sums.shape, lambda *i: sums[i].astype("int32"), name="whole")


def emit_planes(
    x: Tensor, weight: Tensor, window: Window, machine: Machine, *, fill: float = 0.0
) -> Tensor:
    """Emit a depthwise convolution of integers in planes.

    Parameters
    ----------
    x : te.Tensor
        (n, channels, height, width), int8 or uint8.
    weight : te.Tensor
        (channels, 1, kh, kw), in the type of the sums: see :func:`depthwise_dtype`.
    window : Window
        Geometry.
    machine : Machine
        The device.
    fill : float
        Value outside the image.

    Returns
    -------
    te.Tensor
        (n, channels, out height, out width), int32.
    """
    sums = planes.emit(x, weight, window, machine, fill=fill)
    return te.compute(sums.shape, lambda *i: sums[i].astype("int32"), name="whole")


def _image(
    x: Tensor, window: Window, rows: int, columns: int, channels: int, chosen: IntegerPlan
) -> Tensor:
    """Emit the scratch image that ``rows`` x ``columns`` results read."""
    batch, blocks, height, width, block_in = (int(d) for d in x.shape)
    span_h, span_w = window.span(rows, columns)
    top, left, _, _ = window.padding
    nothing = tirx.const(chosen.shift, chosen.row_dtype)  # zero, shifted

    def element(n: Any, c: Any, h: Any, w: Any, i: Any) -> Any:
        if window.is_pointwise:
            inside = [w < height * width]
            value = x[n, c, w // width, w % width, i]
        else:
            inside = [h >= top, h < height + top, w >= left, w < width + left]
            value = x[n, c, h - top, w - left, i]
        if channels != block_in:
            inside.append(i < block_in)
        return te.if_then_else(te.all(*inside), shifted(value, chosen), nothing)

    shape = (batch, blocks, span_h, span_w, channels)
    return te.compute(shape, element, name="pad", attrs={ROLE: "pad"})

"""Convolution of 8-bit channel blocks by a packed constant weight, exact in int32.

The schedule is that of :mod:`.conv`. Every task copies the pixels that it needs into a
scratch image, in the type that the instruction wants and with whole words of channels.
Padding reads as zero, so a zero point other than 0 must be padded with before.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE
from tvmfuse.kernels.conv import Window
from tvmfuse.kernels.gemm.dots import DOT
from tvmfuse.kernels.gemm.integer import IntegerPlan, fitted, shifted
from tvmfuse.kernels.tiling import Machine, ceil_div, conv_tile, round_up

Tensor = Any  # te.Tensor


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

    Returns
    -------
    te.Tensor
        (n, out / b, out height, out width, b), int32.
    """
    batch, in_blocks, height, width, _ = (int(d) for d in x.shape)
    out_blocks, _, kernel_h, kernel_w, words, block_out, group = (int(d) for d in weight.shape)
    out_h, out_w = window.out(height, width)
    depth = in_blocks * kernel_h * kernel_w * words
    flat = window.is_pointwise
    size = (1, out_h * out_w) if flat else (out_h, out_w)
    tile = conv_tile(*size, out_blocks, fitted(machine, chosen), depth=depth)
    rows, columns = round_up(size[0], tile.height), round_up(size[1], tile.width)
    image = _image(x, window, rows, columns, words * group, chosen)
    c, word = te.reduce_axis((0, in_blocks), "c"), te.reduce_axis((0, words), "word")
    kh, kw = te.reduce_axis((0, kernel_h), "kh"), te.reduce_axis((0, kernel_w), "kw")
    part = te.reduce_axis((0, group), "part")
    (sh, sw), (dh, dw) = window.strides, window.dilation

    def product(n: Any, o: Any, *at: Any) -> Any:
        *pixel, oi = at
        h, w = (0, pixel[0]) if flat else pixel
        left = image[n, c, h * sh + kh * dh, w * sw + kw * dw, word * group + part]
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

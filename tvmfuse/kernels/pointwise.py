"""Convolution of 1 x 1 over planes as they lie: the weight times a matrix of pixels.

The pixels of a picture are the columns of a matrix whose rows are channels, so nothing has
to change its place: a task packs the pixels of one panel, all channels of them, and sums
them by tiles of filters. Strides only leave out pixels when these are packed.
"""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import te
from tvmfuse.kernels import approx
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import GemmTile, Machine, ceil_div, gemm_tile, round_up

Tensor = Any  # te.Tensor


def tile(filters: int, pixels: int, machine: Machine) -> GemmTile:
    """Choose the register tile: filters x pixels."""
    found = gemm_tile(filters, pixels, machine)
    tiles = ceil_div(filters, found.rows)
    return GemmTile(ceil_div(filters, tiles), found.columns)


def emit(x: Tensor, weight: Tensor, window: Window, machine: Machine, *, filters: int) -> Tensor:
    """Emit a 1 x 1 convolution without padding.

    Parameters
    ----------
    x : te.Tensor
        (n, channels, height, width), of any float type: it is converted when it is packed.
    weight : te.Tensor
        (filters / rows, channels, rows), float32: see :func:`tile`.
    window : Window
        Its strides.
    machine : Machine
        The device.
    filters : int
        Channels of the result.

    Returns
    -------
    te.Tensor
        (n, filters, out height, out width), float32.
    """
    batch, channels, height, width = (int(d) for d in x.shape)
    out_h, out_w = window.out(height, width)
    pixels, rows = out_h * out_w, int(weight.shape[2])
    columns = tile(filters, pixels, machine).columns
    panels, (sh, sw) = ceil_div(pixels, columns), window.strides

    def pixel(n: Any, k: Any, at: Any) -> Any:
        return approx.cast(x[n, k, at // out_w * sh, at % out_w * sw], "float32")

    def column(n: Any, panel: Any, k: Any, lane: Any) -> Any:
        at = panel * columns + lane
        whole = pixels // columns
        if whole == panels:
            return pixel(n, k, at)
        # A test for each panel, where clamping alone would load lane by lane everywhere.
        last = pixel(n, k, te.min(at, pixels - 1))
        return te.if_then_else(panel < whole, pixel(n, k, at), last) if whole else last

    attrs = {FAMILY: "gemm", ROLE: "pack"}
    packed = te.compute((batch, panels, channels, columns), column, name="pack", attrs=attrs)
    axis = te.reduce_axis((0, channels), "k")
    result = te.compute(
        (batch, round_up(filters, rows), panels * columns),
        lambda n, i, j: te.sum(
            weight[i // rows, axis, i % rows] * packed[n, j // columns, axis, j % columns], axis
        ),
        name="matmul",
        attrs={FAMILY: "gemm", ROLE: "anchor", TILE: [rows, columns]},
    )
    return te.compute(
        (batch, filters, out_h, out_w),
        lambda n, o, h, w: result[n, o, h * out_w + w],
        name="crop",
    )

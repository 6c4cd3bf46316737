"""Transposed convolution over channel-blocked tensors, one ordinary convolution a phase.

With stride s, the results at places h of one remainder (h + padding) mod s read every
s-th tap of the filter: an ordinary convolution of stride 1 with a window of
ceil(k / s) taps, so no product is made with the zeros that a transposed convolution
is said to insert (Shi et al., "Is the deconvolution layer the same as a
convolutional layer?", 2016). A task computes all phases of a few rows by the register
tile of :mod:`tvmfuse.kernels.conv` into a scratch buffer, and from there writes the
rows of the result, interleaved, with the epilogue.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import blocks, conv
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE, Choose, Schedule
from tvmfuse.kernels.image import Window, padded
from tvmfuse.kernels.tiling import (
    ConvTile,
    Machine,
    ceil_div,
    choose_tasks,
    conv_tile,
    divisors,
    round_up,
)

Tensor = Any  # te.Tensor

_STRIP_ROWS = 8  # of each phase, beside one row that two strips may share


@dataclass(frozen=True)
class Geometry:
    """A transposed convolution along height and width.

    Parameters
    ----------
    kernel, strides : tuple of int
        Along height and width.
    before : tuple of int
        Padding at the top and at the left: results that are left out.
    out : tuple of int
        Extents of the result.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int]
    before: tuple[int, int]
    out: tuple[int, int]

    @property
    def phases(self) -> int:
        """Number of ordinary convolutions."""
        return math.prod(self.strides)

    @property
    def taps(self) -> tuple[int, int]:
        """Window of each of them."""
        (kh, kw), (sh, sw) = self.kernel, self.strides
        return ceil_div(kh, sh), ceil_div(kw, sw)

    @property
    def skipped(self) -> tuple[int, int]:
        """First result of a phase that is needed."""
        (top, left), (sh, sw) = self.before, self.strides
        return top // sh, left // sw

    @property
    def needed(self) -> tuple[int, int]:
        """Results of each phase that are needed."""
        ends = zip(self.before, self.out, self.strides, self.skipped, strict=True)
        rows, columns = ((pad + size - 1) // s - skip + 1 for pad, size, s, skip in ends)
        return rows, columns

    @property
    def window(self) -> Window:
        """The window that slides over the image in every phase."""
        (th, tw), (top, left) = self.taps, self.skipped
        return Window(self.taps, padding=(th - 1 - top, tw - 1 - left, 0, 0))


def emit(x: Tensor, weight: Tensor, geometry: Geometry, machine: Machine) -> Tensor:
    """Emit a transposed convolution.

    Parameters
    ----------
    x : te.Tensor
        (n, in / b, height, width, b), float32.
    weight : te.Tensor
        (phases, out / b, in / b, taps, taps, b, b); the taps run backwards, and those
        that the filter lacks are zero.
    geometry : Geometry
        Filter, strides and what is left out.
    machine : Machine
        The device.

    Returns
    -------
    te.Tensor
        (n, out / b, out height, out width, b).
    """
    phases, out_blocks, in_blocks, taps_h, taps_w, block_in, block_out = (
        int(d) for d in weight.shape
    )
    batch = int(x.shape[0])
    rows, columns = geometry.needed
    depth = in_blocks * taps_h * taps_w * block_in
    tile = conv_tile(1, columns, out_blocks, machine, depth=depth)
    rounded = round_up(columns, tile.width)
    image = padded(x, geometry.window, rows, rounded)
    c, ci = te.reduce_axis((0, in_blocks), "c"), te.reduce_axis((0, block_in), "ci")
    u, v = te.reduce_axis((0, taps_h), "u"), te.reduce_axis((0, taps_w), "v")
    (sh, sw), (kh, kw) = geometry.strides, geometry.kernel
    is_ragged = kh % sh or kw % sw

    def pixel(p: Any, h: Any, w: Any) -> Any:
        """Read the image; a tap that the phase lacks reads nothing, not even an infinity."""
        value = image[p // phases, c, h + u, w + v, ci]
        if not is_ragged:
            return value
        row = p % phases // sw + sh * (taps_h - 1 - u)
        column = p % sw + sw * (taps_w - 1 - v)
        has_tap = te.all(row < kh, column < kw)
        return te.if_then_else(has_tap, value, tirx.const(0, x.dtype))

    product = te.compute(
        (batch * phases, out_blocks, rows, rounded, block_out),
        lambda p, o, h, w, oi: te.sum(
            pixel(p, h, w) * weight[p % phases, o, c, u, v, ci, oi], axis=[c, u, v, ci]
        ),
        name="conv2d",
        attrs={FAMILY: "transposed", ROLE: "anchor", TILE: [1, tile.width, tile.blocks]},
    )
    kept = te.compute(
        (batch * phases, out_blocks, rows, columns, block_out),
        lambda *i: product[i],
        name="phases",
        attrs={ROLE: "phases", TILE: [sh, sw]},
    )
    (top, left), (first_h, first_w) = geometry.before, geometry.skipped

    def result(n: Any, o: Any, h: Any, w: Any, oi: Any) -> Any:
        phase = (h + top) % sh * sw + (w + left) % sw
        at = (h + top) // sh - first_h, (w + left) // sw - first_w
        return kept[n * phases + phase, o, *at, oi]

    return te.compute((batch, out_blocks, *geometry.out, block_out), result, name="interleaved")


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule a transposed convolution with its elementwise epilogue.

    Raises
    ------
    LoweringError
        The epilogue cannot be computed within the rows.
    """
    blocks.inline_all(sch)
    anchor, out = blocks.find(sch, "anchor"), blocks.sole_output(sch)
    phases = blocks.find(sch, "phases")
    tile = ConvTile(*blocks.tile(sch, anchor))
    stride = blocks.tile(sch, phases)[0]
    n, o, h, w, oi = sch.get_loops(out)
    column_tiles = blocks.extent(sch, o) // tile.blocks
    rows = ceil_div(blocks.extent(sch, h), stride)
    strip = min(_STRIP_ROWS, ceil_div(rows, machine.cores))
    strips = ceil_div(rows, strip)
    best = choose_tasks(
        column_tiles, strips, machine, column_bytes=1, row_bytes=1, outer=blocks.extent(sch, n)
    )
    column_tasks = choose("column_tasks", divisors(column_tiles), default=best.columns)
    row_tasks = choose("row_tasks", divisors(strips), default=best.rows)
    o_task, o_tile, o_in = blocks.split(sch, o, [column_tasks, None, tile.blocks])
    h_task, h_strip, h_in = blocks.split(sch, h, [row_tasks, None, strip * stride])
    sch.reorder(n, o_task, h_task, h_strip, o_tile, h_in, o_in, w, oi)
    task = blocks.parallel(sch, [n, o_task, h_task], anchor, choose)
    blocks.vectorize(sch, oi, machine.lanes)
    sch.compute_at(phases, o_tile, preserve_unit_loops=True)
    *_, p, o, h, w, lanes = sch.get_loops(phases)
    w_tile, w_in = blocks.split(sch, w, [None, tile.width])
    sch.reorder(p, h, w_tile, w_in, o, lanes)
    sch.compute_at(anchor, w_tile, preserve_unit_loops=True)
    pad = blocks.find(sch, "pad")
    if pad is not None:
        sch.compute_at(pad, task)
        sch.vectorize(sch.get_loops(pad)[-1])
    conv.register_tile(sch, anchor, w_tile, machine, choose)
    blocks.vectorize(sch, lanes, machine.lanes)
    for loop in (w_in, o):
        sch.unroll(loop)

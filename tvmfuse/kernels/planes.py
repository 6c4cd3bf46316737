"""Depthwise convolution of planes as they lie: vectors run along the width.

A lone convolution of plain tensors, or an island among others, would be copied into
channel blocks and back; here every task copies the rows of one channel into a scratch
plane with zeros around, sums a few rows of results at once over it, so that each vector
of the image serves all the windows that it is part of, and writes them where they belong.
The rows of the scratch plane are whole vectors, so no sum has a slow tail. Where one vector
holds a row, zeros on both sides of it would be more than the row itself: such a plane is
copied as one line of numbers, and the sums leave out what belongs to the rows above and
below. With a stride along the width the sums between the results are computed, too, and
dropped: vectors that skip elements would cost more.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx, blocks
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE, Block, Choose, Loop, Schedule
from tvmfuse.kernels.half import FLOATS
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import Machine, ceil_div, divisors, round_up

Tensor = Any  # te.Tensor

_MAX_ROWS = 8
_MAX_TOGETHER = 4
_MAX_PIECE = 64
_MAX_UNROLLED = 256  # multiply-adds in one step
_UNROLLED_ROW = 25
_PLANE_BYTES = 16 << 10  # of scratch, for the first-level cache


@dataclass(frozen=True)
class _Line:
    """How a line of numbers with zeros around lies in scratch: in pieces of equal length.

    Parameters
    ----------
    piece : int
        Divides the length, so that no piece holds both numbers and what is around.
    before, inside, pieces : int
        Pieces of zeros before the numbers, pieces of these, and pieces in all.
    """

    piece: int
    before: int
    inside: int
    pieces: int

    def at(self, place: Any) -> tuple[Any, Any]:
        """Return where a number lies; the first one's place is 0."""
        stored = place + self.before * self.piece
        return stored // self.piece, stored % self.piece


def emit(
    x: Tensor, weight: Tensor, window: Window, machine: Machine, *, fill: float = 0.0
) -> Tensor:
    """Emit a depthwise convolution.

    Parameters
    ----------
    x : te.Tensor
        (n, channels, height, width), of any type: it is converted in the scratch plane.
    weight : te.Tensor
        (channels, 1, kh, kw), of the type of the sums, or of half precision.
    window : Window
        Geometry.
    machine : Machine
        The device.
    fill : float
        Value outside the image.

    Returns
    -------
    te.Tensor
        (n, channels, out height, out width), float32 unless the weight is of integers.
    """
    dtype = "float32" if str(weight.dtype) in FLOATS else str(weight.dtype)
    outside, is_converted = tirx.const(fill, dtype), str(x.dtype) != dtype
    batch, channels, height, width = (int(d) for d in x.shape)
    out_h, out_w = window.out(height, width)
    (kernel_h, kernel_w), (sh, sw), (dh, dw) = window.kernel, window.strides, window.dilation
    top, left, _, _ = window.padding
    sums = (out_w - 1) * sw + 1
    lanes = min(machine.lanes, 1 << (sums - 1).bit_length())
    columns = round_up(sums, math.lcm(lanes, sw))
    tile = _tile(out_h, window, machine)
    rows = round_up(out_h, tile)
    span, _ = window.span(rows, 1)
    reach = columns - left + (kernel_w - 1) * dw  # of the columns that are read
    is_flat = columns == lanes
    if is_flat:
        line = _line(height * width, top * width + left, (span - 1 - top) * width + reach)
    else:
        line = _line(width, left, reach)

    def element(n: Any, c: Any, h: Any, part: Any, i: Any) -> Any:
        within = [part >= line.before, part < line.before + line.inside]
        if not is_flat:
            within += [h >= top, h < height + top]
        if is_converted:
            part, h = (
                te.max(te.min(at, last), first)
                for at, first, last in (
                    (part, line.before, line.before + line.inside - 1),
                    (h, top, height + top - 1),
                )
            )
        place = (part - line.before) * line.piece + i
        value = x[n, c, place // width, place % width] if is_flat else x[n, c, h - top, place]
        if is_converted:
            # Where two ways meet, LLVM takes vectors of odd length apart: there is only one.
            return tirx.Select(te.all(*within), approx.cast(value, dtype), outside)
        return te.if_then_else(te.all(*within), value, outside)

    shape = (batch, channels, 1 if is_flat else span, line.pieces, line.piece)
    padded = te.compute(shape, element, name="pad", attrs={ROLE: "pad"})

    def pixel(n: Any, c: Any, row: Any, column: Any) -> Any:
        if not is_flat:
            return padded[(n, c, row, *line.at(column))]
        value = padded[(n, c, 0, *line.at((row - top) * width + column))]
        # Of floats TVM concludes nothing for the index: every lane is loaded, so it has to exist.
        place = tirx.Cast("float32", column)
        inside = te.all(place >= tirx.const(0, "float32"), place < tirx.const(width, "float32"))
        return tirx.Select(inside, value, outside)

    kh, kw = te.reduce_axis((0, kernel_h), "kh"), te.reduce_axis((0, kernel_w), "kw")
    result = te.compute(
        (batch, channels, rows, columns // sw, sw),
        lambda n, c, h, w, i: te.sum(
            pixel(n, c, h * sh + kh * dh, w * sw + i + kw * dw - left)
            * approx.cast(weight[c, 0, kh, kw], dtype),
            axis=[kh, kw],
        ),
        name="depthwise",
        attrs={FAMILY: "planes", ROLE: "anchor", TILE: [tile, lanes]},
    )
    return te.compute(
        (batch, channels, out_h, out_w), lambda n, c, h, w: result[n, c, h, w, 0], name="crop"
    )


def _tile(rows: int, window: Window, machine: Machine) -> int:
    """Choose how many rows of results share what they read."""
    taps = math.prod(window.kernel)
    # The weights of a window and its pixels want registers as well.
    limit = min(rows, _MAX_ROWS, machine.accumulators // 3, max(1, _MAX_UNROLLED // taps))

    def cost(tile: int) -> float:
        read = ((tile - 1) * window.strides[0] + window.kernel[0]) * window.kernel[1]
        return ceil_div(rows, tile) * (tile * taps + read)

    return min(range(1, limit + 1), key=lambda tile: (cost(tile), tile))


def _line(length: int, before: int, after: int) -> _Line:
    """Return the line that holds ``before`` zeros, the numbers, and zeros up to ``after``."""

    def cut(piece: int) -> _Line:
        zeros, inside = ceil_div(before, piece), length // piece
        return _Line(piece, zeros, inside, zeros + max(inside, ceil_div(after, piece)))

    def cost(found: _Line) -> float:
        vectors = bin(found.piece).count("1") if found.piece < 16 else found.piece / 16
        return found.pieces * (1.0 + vectors)

    return min((cut(d) for d in divisors(length) if d <= _MAX_PIECE), key=cost)


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule a depthwise convolution of planes with its elementwise epilogue.

    Raises
    ------
    LoweringError
        The epilogue cannot be computed row by row.
    """
    blocks.inline_all(sch)
    anchor, out = blocks.find(sch, "anchor"), blocks.sole_output(sch)
    pad = blocks.find(sch, "pad")
    tile, lanes = blocks.tile(sch, anchor)
    # Around the sums, whose rows are whole vectors, and not around the results as elsewhere.
    n, c, h, *columns, kh, kw = sch.get_loops(anchor)
    skipped = blocks.extent(sch, columns[1])
    bands = _bands(sch, pad, blocks.extent(sch, h), tile, choose)
    h_band, h_tile, h_in = blocks.split(sch, h, [bands, None, tile])
    c_task, c_in = blocks.split(sch, c, [None, _together(sch, pad, c, choose)])
    vectors, vector = blocks.split(sch, sch.fuse(*columns), [None, lanes])
    sch.reorder(n, c_task, h_band, c_in, h_tile, vectors, kh, kw, h_in, vector)
    task = blocks.parallel(sch, [n, c_task, h_band], anchor, choose)
    sch.reverse_compute_at(out, h_tile, preserve_unit_loops=True)
    sch.compute_at(pad, task, preserve_unit_loops=True)
    _copy(sch, sch.get_loops(pad)[-1])
    *_, row, column = sch.get_loops(out)
    sch.unroll(row)
    if skipped == 1:
        # What is converted takes many steps: LLVM would keep their constants for each part.
        is_wide = blocks.extent(sch, column) % lanes or not _is_converted(sch, anchor, out)
        _copy(sch, column, _MAX_PIECE if is_wide else lanes)
    sch.vectorize(vector)
    for loop in [h_in, *_unrolled(sch, [kh, kw], tile)]:
        sch.unroll(loop)
    sch.decompose_reduction(anchor, kh)
    for block in (anchor, pad):
        sch.set_scope(block, 0, "local")


def _unrolled(sch: Schedule, window: Sequence[Loop], tile: int) -> Sequence[Loop]:
    """Return the loops over a window that are unrolled: all, those of a row, or none."""
    *_, row = taps = blocks.extents(sch, window)
    if math.prod(taps) * tile <= _MAX_UNROLLED:
        return window
    return window[1:] if row <= _UNROLLED_ROW else ()


def _bands(sch: Schedule, pad: Block, rows: int, tile: int, choose: Choose) -> int:
    """Cut the rows of a channel so that the scratch plane of each part fits the cache."""
    _, _, span, pieces, piece = blocks.axis_extents(sch, pad, reduced=False)
    tiles = ceil_div(rows, tile)
    options = divisors(tiles)
    fit = [d for d in options if 4 * span * pieces * piece <= d * _PLANE_BYTES]
    return int(choose("bands", options, default=min(fit, default=tiles)))


def _together(sch: Schedule, pad: Block, channels: Loop, choose: Choose) -> int:
    """Choose how many channels are copied before they are summed.

    What has just been stored in pieces of another length cannot be loaded before it is in
    the cache: with one small plane at a time, the sums would wait for that.
    """
    _, _, lines, pieces, piece = blocks.axis_extents(sch, pad, reduced=False)
    options = [d for d in divisors(blocks.extent(sch, channels)) if d <= _MAX_TOGETHER]
    limit = _PLANE_BYTES // (4 * pieces * piece) if lines == 1 else 1
    default = max((d for d in options if d <= limit), default=1)
    return int(choose("channels", options, default=default))


def _is_converted(sch: Schedule, anchor: Block, out: Block) -> bool:
    """Whether the results are of another type than the sums."""
    sums, results = (sch.get(block).writes[0].source.dtype for block in (anchor, out))
    return str(sums) != str(results)


def _copy(sch: Schedule, loop: Loop, longest: int = _MAX_PIECE) -> None:
    """Copy a row by vectors of exactly its length, or of a divisor of it."""
    size = blocks.extent(sch, loop)
    piece = max(d for d in divisors(size) if d <= longest)
    if piece > 1:
        _, inner = blocks.split(sch, loop, [None, piece])
        sch.vectorize(inner)

"""Depthwise convolution and pooling: one window per channel, channels in the vector.

Tensors are channel-blocked as in :mod:`tvmfuse.kernels.conv`. Nothing is reused
across channels, so the tile is a few neighbouring pixels of one channel block,
and each pixel read serves all windows that cover it. Taps outside the image are
tested for where they are read: the tests of a row of taps agree, and copying the
image with zeros around, as convolutions do, would cost more than the window.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx, blocks
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE, Block, Choose, Loop, Schedule
from tvmfuse.kernels.image import Window, padded, widened
from tvmfuse.kernels.rows import maximum
from tvmfuse.kernels.tiling import (
    Machine,
    choose_tasks,
    divisors,
    round_up,
    window_tile,
)

Tensor = Any  # te.Tensor
Pad = Callable[..., Tensor]  # as image.padded

# Window positions that are unrolled; of larger windows, only the positions of one row are.
_UNROLLED_WINDOW = 25
_LARGEST_UNROLLED = 49  # as far as a tuner may try


def emit_depthwise(x: Tensor, weight: Tensor, window: Window, machine: Machine) -> Tensor:
    """Emit a depthwise convolution.

    Parameters
    ----------
    x : te.Tensor
        (n, channels / b, height, width, b), of any float type.
    weight : te.Tensor
        (channels / b, kh, kw, b), of that type.
    window : Window
        Geometry.
    machine : Machine
        The device.

    Returns
    -------
    te.Tensor
        (n, channels / b, out height, out width, b).
    """

    def combine(at: Any, kh: Any, kw: Any, c: Any, ci: Any) -> Any:
        return te.sum(at * approx.cast(weight[c, kh, kw, ci], "float32"), axis=[kh, kw])

    return emit(x, window, machine, combine, fill=0.0, pad=widened)


def emit_max(x: Tensor, window: Window, machine: Machine, *, pad: Pad = padded) -> Tensor:
    """Emit max pooling; shapes as :func:`emit_depthwise`."""

    def combine(at: Any, kh: Any, kw: Any, _c: Any, _ci: Any) -> Any:
        return maximum()(at, axis=[kh, kw])

    return emit(x, window, machine, combine, fill=-math.inf, pad=pad)


def emit_plain_max(
    x: Tensor,
    shape: Sequence[int],
    *,
    kernel: Sequence[int],
    strides: Sequence[int],
    dilation: Sequence[int],
    before: Sequence[int],
) -> Tensor:
    """Emit max pooling of a tensor that is not blocked; it belongs to no family.

    Parameters
    ----------
    x : te.Tensor
        (n, channels, *sizes), along any number of axes.
    shape : sequence of int
        Shape of the result.
    kernel, strides, dilation, before : sequence of int
        The window along each axis, and the padding before the first element.

    Returns
    -------
    te.Tensor
        ``shape``; NaN where a window covers one.
    """
    taps = [te.reduce_axis((0, extent), "k") for extent in kernel]
    outside = tirx.const(-math.inf, x.dtype)

    def value(*index: Any) -> Any:
        terms = zip(index[2:], strides, taps, dilation, before, strict=True)
        at = [i * step + tap * gap - pad for i, step, tap, gap, pad in terms]
        inside = [te.all(a >= 0, a < size) for a, size in zip(at, x.shape[2:], strict=True)]
        element = te.if_then_else(te.all(*inside), x[(*index[:2], *at)], outside)
        return maximum()(element, axis=taps)

    return te.compute(tuple(shape), value, name="max_pool")


def emit_mean(
    x: Tensor, window: Window, machine: Machine, *, count_padding: bool, pad: Pad = padded
) -> Tensor:
    """Emit average pooling; shapes as :func:`emit_depthwise`.

    Parameters
    ----------
    x : te.Tensor
        (n, channels / b, height, width, b).
    window : Window
        Geometry.
    machine : Machine
        The device.
    count_padding : bool
        Whether the divisor counts positions outside the image.
    pad : callable
        Emits the image that the window reads.
    """

    def combine(at: Any, kh: Any, kw: Any, _c: Any, _ci: Any) -> Any:
        return te.sum(at, axis=[kh, kw])

    total = emit(x, window, machine, combine, fill=0.0, pad=pad)
    sizes = [int(x.shape[2]), int(x.shape[3])]

    def covered(axis: int, position: Any) -> Any:
        """Count the taps of a window that lie within the image, or its padding as well."""
        before, after = window.padding[axis], window.padding[axis + 2]
        start = position * window.strides[axis] - before
        low, high = (-before, sizes[axis] + after) if count_padding else (0, sizes[axis])
        gap = window.dilation[axis]
        first = te.max((low - start + gap - 1) // gap, 0)
        return te.min((high - start + gap - 1) // gap, window.kernel[axis]) - first

    return te.compute(
        total.shape,
        lambda n, c, h, w, i: (
            total[n, c, h, w, i] / tirx.Cast(x.dtype, covered(0, h) * covered(1, w))
        ),
        name="mean",
    )


def emit(
    x: Tensor, window: Window, machine: Machine, combine: Any, *, fill: float, pad: Pad = padded
) -> Tensor:
    """Emit a reduction of each channel over a window.

    Parameters
    ----------
    x : te.Tensor
        (n, channels / b, height, width, b).
    window : Window
        Geometry.
    machine : Machine
        The device.
    combine : callable
        ``combine(value, kh, kw, block, channel)`` reduces over the taps.
    fill : float
        Value outside the image.
    pad : callable
        Emits the image that the window reads.

    Returns
    -------
    te.Tensor
        (n, channels / b, out height, out width, b).
    """
    _, _, height, width, _ = (int(d) for d in x.shape)
    out_h, out_w = window.out(height, width)
    tile = window_tile(out_w, machine)
    columns = round_up(out_w, tile)
    image = pad(x, window, out_h, columns, fill=fill)
    kh = te.reduce_axis((0, window.kernel[0]), "kh")
    kw = te.reduce_axis((0, window.kernel[1]), "kw")
    (sh, sw), (dh, dw) = window.strides, window.dilation
    result = te.compute(
        (x.shape[0], x.shape[1], out_h, columns, x.shape[4]),
        lambda n, c, h, w, i: combine(
            image[n, c, h * sh + kh * dh, w * sw + kw * dw, i], kh, kw, c, i
        ),
        name="window",
        attrs={FAMILY: "window", ROLE: "anchor", TILE: [tile]},
    )
    return te.compute(
        (x.shape[0], x.shape[1], out_h, out_w, x.shape[4]), lambda *i: result[i], name="crop"
    )


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule a window reduction with its elementwise epilogue.

    Raises
    ------
    LoweringError
        The epilogue cannot be computed within the tile.
    """
    blocks.inline_all(sch)
    anchor, out = blocks.find(sch, "anchor"), blocks.sole_output(sch)
    (tile,) = blocks.tile(sch, anchor)
    n, c, h, w, ci = sch.get_loops(out)
    rows = blocks.extent(sch, h)
    batch = blocks.extent(sch, n) * blocks.extent(sch, c)
    pad = blocks.find(sch, "pad")
    # A scratch image in another type is worth a copy, which then has to fit a cache.
    is_converted = pad is not None and blocks.is_conversion(sch, pad)
    row_bytes = _image_bytes(sch, pad) if is_converted else 1
    best = choose_tasks(1, rows, machine, column_bytes=1, row_bytes=row_bytes, outer=batch)
    tasks = choose("row_tasks", divisors(rows), default=best.rows)
    h_task, h_in = blocks.split(sch, h, [tasks, None])
    w_tile, w_in = blocks.split(sch, w, [None, tile])
    sch.reorder(n, c, h_task, h_in, w_tile, w_in, ci)
    sch.compute_at(anchor, w_tile, preserve_unit_loops=True)
    task = blocks.parallel(sch, [n, c, h_task], anchor, choose)
    if pad is not None:
        default = "task" if is_converted else "tap"
        _place_padding(sch, pad, {"task": task, "row": h_in}, choose, default=default)
    register_tile(sch, anchor, w_tile, machine, choose)
    blocks.vectorize(sch, ci, machine.lanes)
    sch.unroll(w_in)


def register_tile(
    sch: Schedule, anchor: Block, below: Loop, machine: Machine, choose: Choose
) -> None:
    """Schedule the windows of a few neighbouring pixels, computed within ``below``."""
    spatial, reduced = blocks.inner_loops(sch, anchor, below)
    *pixels, lanes = spatial
    elements = math.prod(blocks.extents(sch, spatial))
    sch.reorder(*reduced, *pixels, lanes)
    blocks.vectorize(sch, lanes, machine.lanes)
    unrolled = _unrolled(blocks.extents(sch, reduced), choose)
    for loop in [*pixels, *reduced[len(reduced) - unrolled :]]:
        sch.unroll(loop)
    sch.decompose_reduction(anchor, reduced[0])
    blocks.hold(sch, anchor, elements)


def _image_bytes(sch: Schedule, pad: Block) -> int:
    """Return the bytes of the scratch image of one channel block."""
    _, _, *sizes = blocks.axis_extents(sch, pad, reduced=False)
    return 4 * math.prod(sizes)


def _place_padding(
    sch: Schedule, pad: Block, places: Mapping[str, Loop], choose: Choose, *, default: str
) -> None:
    """Test for the edge at each tap, or copy the image with its padding within a loop."""
    place = choose("pad_within", ("tap", *places), default=default)
    if place == "tap":
        sch.compute_inline(pad)
        return
    sch.compute_at(pad, places[place])
    sch.vectorize(sch.get_loops(pad)[-1])


def _unrolled(window: Sequence[int], choose: Choose) -> int:
    """Return how many of the axes of the window are unrolled, from the last."""
    taps, row = math.prod(window), window[-1]
    options = [0, *([1] if row <= _LARGEST_UNROLLED else [])]
    options += [2] if taps <= _LARGEST_UNROLLED else []
    default = 2 if taps <= _UNROLLED_WINDOW else int(row <= _UNROLLED_WINDOW)
    return int(choose("unroll_window", tuple(options), default=default))

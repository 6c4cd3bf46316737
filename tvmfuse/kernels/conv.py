"""Convolution over channel-blocked tensors, scheduled as a direct convolution.

Layouts (``b`` channels a block, see :attr:`tiling.Machine.block`):

- activations ``(n, channels / b, height, width, b)``,
- weights ``(out / b, in / b, kh, kw, b, b)``: the output channel is innermost,
  so one vector load serves one accumulator row.

The register tile is a few neighbouring pixels x a few channel blocks, summed
over the whole window and all input channels without leaving the registers, as
oneDNN and MLAS do (3 pixels x 4 blocks on AVX2); :func:`tiling.conv_tile`
chooses it. Padding is not a pass over the input: every task copies the rows
that it needs into a scratch tile with zeros around. Images that form no whole
number of tiles are rounded up in that scratch tile, so the inner loop never
tests a bound (a predicate there costs two thirds of the speed). A 1 x 1
convolution of stride 1 reads its pixels as one row, clamped at its end.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvmfuse._tvm import te
from tvmfuse.kernels import approx, blocks
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE, Block, Choose, Loop, Schedule
from tvmfuse.kernels.gemm import dots
from tvmfuse.kernels.image import Window, widened
from tvmfuse.kernels.tiling import (
    MAX_UNROLLED,
    ConvTile,
    Machine,
    Tasks,
    ceil_div,
    choose_tasks,
    conv_tile,
    divisors,
    even_tiles,
    round_up,
)

Tensor = Any  # te.Tensor


def emit(
    x: Tensor,
    weight: Tensor,
    window: Window,
    machine: Machine,
    *,
    groups: int = 1,
    margin: tuple[int, int] | None = None,
) -> Tensor:
    """Emit a convolution.

    Parameters
    ----------
    x : te.Tensor
        (n, in / b, height, width, b), of any float type. Half precision is converted in the
        scratch image, and summed in float32.
    weight : te.Tensor
        (out / b, in / groups / b, kh, kw, b, b), of that type.
    window : Window
        Geometry.
    machine : Machine
        The device.
    groups : int
        Channel groups; blocks may not straddle them.
    margin : tuple of int, optional
        Rows above and below the result that are computed, and not returned: for a reader in
        the same kernel that takes some rows at a time (:mod:`chained`).

    Returns
    -------
    te.Tensor
        (n, out / b, out height, out width, b), float32.
    """
    _, _, height, width, _ = (int(d) for d in x.shape)
    out_h, out_w = window.out(height, width)
    if window.is_pointwise and margin is None:
        return emit_pointwise(x, weight, machine, groups=groups)
    out_blocks, in_blocks, kernel_h, kernel_w, block_in, block_out = (int(d) for d in weight.shape)
    depth = in_blocks * kernel_h * kernel_w * block_in
    if margin is None:
        tile = conv_tile(out_h, out_w, out_blocks // groups, machine, depth=depth)
    else:
        window, out_h = window.taller(margin), out_h + sum(margin)
        tile = conv_tile(1, out_w, out_blocks // groups, machine, depth=depth)
    rows, columns = round_up(out_h, tile.height), round_up(out_w, tile.width)
    image = widened(x, window, rows, columns)
    c = te.reduce_axis((0, in_blocks), "c")
    kh, kw = te.reduce_axis((0, kernel_h), "kh"), te.reduce_axis((0, kernel_w), "kw")
    ci = te.reduce_axis((0, block_in), "ci")
    (sh, sw), (dh, dw) = window.strides, window.dilation
    per_group = out_blocks // groups
    result = te.compute(
        (x.shape[0], out_blocks, rows, columns, block_out),
        lambda n, o, h, w, oi: te.sum(
            image[n, o // per_group * in_blocks + c, h * sh + kh * dh, w * sw + kw * dw, ci]
            * approx.cast(weight[o, c, kh, kw, ci, oi], "float32"),
            axis=[c, kh, kw, ci],
        ),
        name="conv2d",
        attrs={FAMILY: "conv", ROLE: "anchor", TILE: [tile.height, tile.width, tile.blocks]},
    )
    above, below = margin or (0, 0)
    return te.compute(
        (x.shape[0], out_blocks, out_h - above - below, out_w, block_out),
        lambda n, o, h, w, oi: result[n, o, h + above, w, oi],
        name="crop",
    )


def emit_pointwise(
    x: Tensor,
    weight: Tensor,
    machine: Machine,
    *,
    groups: int = 1,
    staged: Mapping[str, Any] | None = None,
) -> Tensor:
    """Emit a 1 x 1 convolution of every pixel.

    Parameters
    ----------
    x : te.Tensor
        (n, in / b, height, width, b), of any float type.
    weight : te.Tensor
        (out / b, in / groups / b, 1, 1, b, b), of that type.
    machine : Machine
        The device.
    groups : int
        Channel groups; blocks may not straddle them.
    staged : Mapping of str to object, optional
        Attributes of a block that first gathers the pixels, which the same kernel computes.

    Returns
    -------
    te.Tensor
        (n, out / b, height, width, b), float32.
    """
    batch, channel_blocks, height, width, _ = (int(d) for d in x.shape)
    out_blocks, in_blocks, _, _, block_in, block_out = (int(d) for d in weight.shape)
    pixels = height * width
    depth = in_blocks * block_in
    tile = conv_tile(1, pixels, out_blocks // groups, machine, depth=depth)
    c, ci = te.reduce_axis((0, in_blocks), "c"), te.reduce_axis((0, block_in), "ci")
    per_group = out_blocks // groups
    rounded = even_tiles(ceil_div(pixels, tile.width), machine) * tile.width

    def pixel(n: Any, block: Any, p: Any, i: Any) -> Any:
        at = p if rounded == pixels else te.min(p, pixels - 1)
        return approx.cast(x[n, block, at // width, at % width, i], "float32")

    read: Any = pixel
    if staged is not None or str(x.dtype) != "float32":
        # Pixels are read one by one, once for each channel block: they are converted before.
        attrs = {ROLE: "pad"} if staged is None else dict(staged)
        shape = (batch, channel_blocks, rounded, block_in)
        read = te.compute(shape, pixel, name="pad" if staged is None else "stage", attrs=attrs)

    def term(n: Any, o: Any, p: Any, oi: Any) -> Any:
        factor = approx.cast(weight[o, c, 0, 0, ci, oi], "float32")
        return read(n, o // per_group * in_blocks + c, p, ci) * factor

    result = te.compute(
        (batch, out_blocks, rounded, block_out),
        lambda n, o, p, oi: te.sum(term(n, o, p, oi), axis=[c, ci]),
        name="conv2d",
        attrs={FAMILY: "conv", ROLE: "anchor", TILE: [1, tile.width, tile.blocks]},
    )
    return te.compute(
        (batch, out_blocks, height, width, block_out),
        lambda n, o, h, w, oi: result[n, o, h * width + w, oi],
        name="crop",
    )


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule a convolution with its elementwise epilogue.

    Raises
    ------
    LoweringError
        The epilogue cannot be computed within the register tile.
    """
    blocks.inline_all(sch)
    anchor, out = blocks.find(sch, "anchor"), blocks.sole_output(sch)
    tile = ConvTile(*blocks.tile(sch, anchor))
    is_flat = len(blocks.axis_extents(sch, anchor, reduced=False)) == _FLAT_AXES
    if is_flat:
        width = blocks.extent(sch, sch.get_loops(out)[3])
        sch.transform_block_layout(out, lambda n, o, h, w, oi: [n, o, h * width + w, oi])
    n, o, *pixels, oi = sch.get_loops(out)
    tasks = choose_cut(sch, anchor, tile, machine, choose)
    o_task, o_tile, o_in = blocks.split(sch, o, [tasks.columns, None, tile.blocks])
    if is_flat:
        p_task, p_tile, p_in = blocks.split(sch, pixels[0], [tasks.rows, None, tile.width])
        rows, inner = [p_tile], [p_in, o_in]
    else:
        h, w = pixels
        p_task, h_tile, h_in = blocks.split(sch, h, [tasks.rows, None, tile.height])
        w_tile, w_in = blocks.split(sch, w, [None, tile.width])
        rows, inner = [h_tile, w_tile], [h_in, w_in, o_in]
    first = choose("outer_tiles", ("channels", "pixels"), default="channels")
    outer = [o_tile, *rows] if first == "channels" else [*rows, o_tile]
    sch.reorder(n, o_task, p_task, *outer, *inner, oi)
    sch.compute_at(anchor, outer[-1], preserve_unit_loops=True)
    task = blocks.parallel(sch, [n, o_task, p_task], anchor, choose)
    pad = blocks.find(sch, "pad")
    if pad is not None:
        place = choose("pad_within", ("task", "row"), default="task")
        sch.compute_at(pad, task if place == "task" else rows[0])
        sch.vectorize(sch.get_loops(pad)[-1])
    register_tile(sch, anchor, outer[-1], machine, choose)
    _vector_block(sch, oi, machine)
    for loop in inner:
        sch.unroll(loop)


_FLAT_AXES = 4  # n, o, pixel and oi of a pointwise convolution


def register_tile(
    sch: Schedule, anchor: Block, below: Loop, machine: Machine, choose: Choose
) -> None:
    """Schedule the sum of one register tile, which ``anchor`` computes within ``below``."""
    spatial, reduced = blocks.inner_loops(sch, anchor, below)
    batch, channels, *pixels, lanes = spatial
    dot = dots.of(sch, anchor)
    part = [reduced.pop()] if dot else []
    if len(reduced) > 1 and blocks.extent(sch, reduced[-1]) == 1:  # channels one by one
        reduced[-2:] = [sch.fuse(*reduced[-2:])]
    steps = blocks.extent(sch, reduced[-1])
    body = math.prod(blocks.extents(sch, spatial)) // machine.lanes
    options = dots.unrollings(steps, body, dot)
    unroll = choose("unroll", options, default=max(d for d in options if d <= 4))
    *sums, last = reduced
    # The sum around it: the taps of one row of the window, or the blocks of channels.
    around = blocks.extent(sch, sums[-1]) if sums and not dot else MAX_UNROLLED
    is_small = around * unroll * body <= MAX_UNROLLED
    is_unrolled = choose("unroll_outer", (False, True) if is_small else (False,), default=False)
    last_outer, last_inner = blocks.split(sch, last, [None, unroll])
    # One pixel meets all channel blocks in a row, so that only its broadcast is live.
    sch.reorder(*sums, last_outer, last_inner, batch, *pixels, channels, lanes, *part)
    if not dot:
        _vector_block(sch, lanes, machine)
    for loop in [*(sums[-1:] if is_unrolled else []), last_inner, *pixels, channels]:
        sch.unroll(loop)
    first = [*sums, last_outer][0]
    if dot:
        dots.apply(sch, anchor, first, lanes, dot)
        return
    sch.decompose_reduction(anchor, first)
    blocks.hold(sch, anchor, body * machine.lanes)


def _vector_block(sch: Schedule, loop: Loop, machine: Machine) -> None:
    blocks.vectorize(sch, loop, machine.lanes)


def choose_cut(
    sch: Schedule, anchor: Block, tile: ConvTile, machine: Machine, choose: Choose
) -> Tasks:
    """Choose how a convolution is cut into tasks, by channels and by pixels."""
    batch, out_blocks, rows, *columns, block_out = blocks.axis_extents(sch, anchor, reduced=False)
    is_flat, width = not columns, math.prod(columns)
    sums = blocks.axis_extents(sch, anchor, reduced=True)
    sums = sums[:-1] if dots.of(sch, anchor) else sums  # words of four bytes, not their parts
    weight_bytes = 4 * out_blocks * block_out
    for size in sums:
        weight_bytes *= size
    image_bytes = 4 * rows * width * sums[0] * sums[-1]
    row_tiles = rows // (tile.width if is_flat else tile.height)
    column_tiles = out_blocks // tile.blocks
    best = choose_tasks(
        column_tiles,
        row_tiles,
        machine,
        column_bytes=weight_bytes,
        row_bytes=image_bytes,
        outer=batch,
    )
    return Tasks(
        choose("column_tasks", divisors(column_tiles), default=best.columns),
        choose("row_tasks", divisors(row_tiles), default=best.rows),
    )

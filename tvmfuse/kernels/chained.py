"""Two anchors, one after the other, in one kernel.

A depthwise convolution and the 1 x 1 convolution that reads it; a convolution and the
pooling of its result; two matrix products (:mod:`chained_rows`); a 1 x 1 convolution and
what is computed of each pixel before it (:mod:`chained_pixels`). A task takes some rows
of the second one. For a few of them at a time it computes the rows of the first one that
they read (its *stage*, with all that stands between the two) into scratch that stays in
the second-level cache, and then reads it from there, so what lies between never meets
memory.

A 1 x 1 convolution reads all channels, so its stage holds all of them; a window reads
just its own channels, so its stage holds one tile of them. Rows of the stage that two
neighbouring stages need are computed twice.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import blocks, chained_pixels, chained_rows, conv, gemm, image, window
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE, Block, Choose, Loop, Schedule
from tvmfuse.kernels.choices import prefixed
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import (
    Machine,
    choose_tasks,
    conv_tile,
    divisors,
    round_up,
)

Tensor = Any  # te.Tensor

CHAINED = "chained"
_STAGE = "stage"  # role of what the first one leaves to the second
# A stage of all channels is best near the first-level cache (measured with 16 KB to 1 MB for
# MobileNetV2's blocks); one whose rows overlap the next stage's is large, for the overlap's sake.
_STAGE_BYTES = 64 << 10
_OVERLAPPING_SHARE = 0.5  # of the second-level cache


def emit_pointwise(x: Tensor, weight: Tensor, machine: Machine) -> Tensor:
    """Emit a 1 x 1 convolution that reads what the same kernel computed.

    Parameters
    ----------
    x : te.Tensor
        (n, in / b, height, width, b), computed by a window.
    weight : te.Tensor
        (out / b, in / b, 1, 1, b, b).
    machine : Machine
        The device.

    Returns
    -------
    te.Tensor
        (n, out / b, height, width, b).
    """
    batch, _, height, width, _ = (int(d) for d in x.shape)
    out_blocks, in_blocks, _, _, block_in, block_out = (int(d) for d in weight.shape)
    stage = te.compute(x.shape, lambda *i: x[i], name="stage", attrs=_kept())
    tile = conv_tile(1, width, out_blocks, machine, depth=in_blocks * block_in)
    columns = round_up(width, tile.width)
    c, ci = te.reduce_axis((0, in_blocks), "c"), te.reduce_axis((0, block_in), "ci")

    def term(n: Any, o: Any, h: Any, w: Any, oi: Any) -> Any:
        at = w if columns == width else te.min(w, width - 1)
        return te.sum(stage[n, c, h, at, ci] * weight[o, c, 0, 0, ci, oi], axis=[c, ci])

    result = te.compute(
        (batch, out_blocks, height, columns, block_out),
        term,
        name="conv2d",
        attrs={FAMILY: "conv", ROLE: "anchor", TILE: [1, tile.width, tile.blocks]},
    )
    shape = (batch, out_blocks, height, width, block_out)
    return te.compute(shape, lambda *i: result[i], name="crop")


def emit_pixels(x: Tensor, weight: Tensor, machine: Machine) -> Tensor:
    """Emit a 1 x 1 convolution of pixels that the same kernel computes one by one.

    Parameters
    ----------
    x : te.Tensor
        (n, in / b, height, width, b), computed element by element.
    weight : te.Tensor
        (out / b, in / b, 1, 1, b, b).
    machine : Machine
        The device.

    Returns
    -------
    te.Tensor
        (n, out / b, height, width, b).
    """
    return conv.emit_pointwise(x, weight, machine, staged=_kept())


def emit_product(x: Tensor, panels: Tensor, n: int, machine: Machine, *, rows: int) -> Tensor:
    """Emit a matrix product that reads what the same kernel computed.

    Parameters
    ----------
    x : te.Tensor
        (..., M, K), float32, computed by a product in tiles of ``rows``. Where these do not
        divide M, it is evaluated in whole tiles, so from nothing else that has rows.
    panels : te.Tensor
        (N / NR, K, NR) as :func:`gemm.pack` makes it.
    n : int
        Columns of the result.
    machine : Machine
        The device.
    rows : int
        Rows of a tile, see :func:`chained_rows.rows_for`.

    Returns
    -------
    te.Tensor
        (..., M, N).
    """
    flat = gemm.flattened(x)
    shape = (round_up(int(flat.shape[0]), rows), int(flat.shape[1]))
    stage = te.compute(shape, lambda i, at: flat[i, at], name="stage", attrs=_kept())
    return gemm.emit_packed(stage, panels, n, machine, lead=list(x.shape[:-1]), rows=rows)


def padded(x: Tensor, geometry: Window, rows: int, columns: int, *, fill: float = 0.0) -> Tensor:
    """Emit the image that a window reads, and below it the stage that the image lies in.

    The stage has rows above and below the image, so that each task computes equally many.

    Parameters
    ----------
    x : te.Tensor
        (n, blocks, height, width, b), computed by a convolution with a :func:`margin`, and from
        nothing else of that height: it is evaluated in the margin as well.
    geometry : Window
        Of the reader.
    rows, columns : int
        Its results along height and width, whole tiles.
    fill : float
        Value outside the image.
    """
    batch, channels, height, width, block = (int(d) for d in x.shape)
    span_h = geometry.span(rows, columns)[0]
    top, left, _, _ = geometry.padding
    outside = tirx.const(fill, x.dtype)

    def staged(n: Any, c: Any, h: Any, w: Any, i: Any) -> Any:
        # A branch would spill the sums of the tile, see blocks.hold; what is read is there.
        inside = te.all(h >= top, h < height + top)
        return tirx.Select(inside, x[n, c, h - top, w, i], outside)

    shape = (batch, channels, span_h, width, block)
    stage = te.compute(shape, staged, name="stage", attrs=_kept())
    across = Window(geometry.kernel, geometry.strides, (0, left, 0, 0), geometry.dilation)
    return image.padded(stage, across, rows, columns, fill=fill)


def margin(geometry: Window, height: int) -> tuple[int, int]:
    """Return the rows above and below an image of ``height`` rows in the stage of a window."""
    top = geometry.padding[0]
    rows, _ = geometry.out(height, geometry.kernel[1])
    span, _ = geometry.span(rows, 1)
    return top, max(0, span - top - height)


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule two anchors, the first one within the second one's rows.

    Raises
    ------
    LoweringError
        They are not two, or what stands between or behind them cannot be computed within.
    """
    blocks.inline_all(sch)
    anchors, stage = blocks.find_all(sch, "anchor"), blocks.find(sch, _STAGE)
    if len(anchors) == 1 and stage is not None:
        chained_pixels.schedule(sch, anchors[0], stage, machine, choose)
        return
    if len(anchors) != 2 or stage is None:
        raise LoweringError(f"a chain of two anchors is required, but found {len(anchors)}")
    first, second = anchors
    if _is_product(sch, first):
        chained_rows.schedule(sch, first, second, stage, machine, choose)
        return
    for reader in [second] if _is_conv(sch, first) else anchors:
        for pad in blocks.find_all(sch, "pad"):
            if any(blocks.same(sch, pad, source) for source in sch.get_producers(reader)):
                sch.compute_inline(pad)
    n, o, h, w, oi = sch.get_loops(blocks.sole_output(sch))
    cut = _cut(sch, first, second, (blocks.extent(sch, n), blocks.extent(sch, h)), machine, choose)
    o_task, o_tile, o_in = blocks.split(sch, o, [cut.column_tasks, None, cut.blocks])
    h_task, h_stage, h_in = blocks.split(sch, h, [cut.row_tasks, None, cut.rows])
    w_tile, w_in = blocks.split(sch, w, [None, cut.width])
    reads_all = _is_conv(sch, second)
    tile = (w_in, o_in, oi) if reads_all else (w_in, oi)
    inner = (h_in, w_tile) if reads_all else (o_in, h_in, w_tile)
    sch.reorder(n, o_task, h_task, h_stage, o_tile, *inner, *tile)
    sch.compute_at(second, w_tile, preserve_unit_loops=True)
    blocks.parallel(sch, [n, o_task, h_task], first, choose)
    sch.compute_at(stage, h_stage if reads_all else o_tile, preserve_unit_loops=True)
    _schedule_stage(sch, first, stage, h_stage, machine, prefixed(choose, "first."))
    _register_tile(sch, second, w_tile, machine, prefixed(choose, "second."))
    blocks.vectorize(sch, oi, machine.lanes)
    for loop in tile[:-1]:
        sch.unroll(loop)


def _schedule_stage(
    sch: Schedule, first: Block, stage: Block, rows: Loop, machine: Machine, choose: Choose
) -> None:
    """Schedule the first anchor within its stage, which lies within the loop ``rows``."""
    c, h, w, ci = sch.get_loops(stage)[-4:]
    _, width, *channels = (1, *blocks.tile(sch, first))[-3:]
    w_tile, w_in = blocks.split(sch, w, [None, width])
    c_tile, c_in = blocks.split(sch, c, [None, *channels] if channels else [None, 1])
    sch.reorder(c_tile, h, w_tile, w_in, c_in, ci)
    sch.compute_at(first, w_tile, preserve_unit_loops=True)
    pad = blocks.find(sch, "pad")
    if pad is not None:
        sch.compute_at(pad, rows)
        sch.vectorize(sch.get_loops(pad)[-1])
    _register_tile(sch, first, w_tile, machine, choose)
    blocks.vectorize(sch, ci, machine.lanes)
    sch.unroll(w_in)
    sch.unroll(c_in)


def _register_tile(
    sch: Schedule, anchor: Block, below: Loop, machine: Machine, choose: Choose
) -> None:
    family = conv if _is_conv(sch, anchor) else window
    family.register_tile(sch, anchor, below, machine, choose)


@dataclass(frozen=True)
class _Cut:
    """Tasks by channels and by rows, then rows of a stage, and the tile within it."""

    column_tasks: int
    row_tasks: int
    rows: int
    blocks: int
    width: int


def _cut(
    sch: Schedule,
    first: Block,
    second: Block,
    outer: tuple[int, int],
    machine: Machine,
    choose: Choose,
) -> _Cut:
    batch, rows = outer
    _, width, *wide = (1, *blocks.tile(sch, second))[-3:]
    channels = blocks.axis_extents(sch, second, reduced=False)[1]
    if wide:  # a convolution, which reads all channels
        (part,), column_tiles, staged = wide, 1, blocks.axis_extents(sch, first, reduced=False)[1]
    else:
        part = blocks.tile(sch, first)[2]
        column_tiles, staged = channels // part, part
    best = choose_tasks(column_tiles, rows, machine, column_bytes=1, row_bytes=1, outer=batch)
    column_tasks = choose("column_tasks", divisors(column_tiles), default=best.columns)
    row_tasks = choose("row_tasks", divisors(rows), default=best.rows)
    *_, height, columns, block = blocks.axis_extents(sch, first, reduced=False)
    row_bytes = 4 * staged * block * columns * height // rows
    options = divisors(rows // row_tasks)
    room = _STAGE_BYTES if wide else machine.l2_bytes * _OVERLAPPING_SHARE
    fitting = [d for d in options if d * row_bytes <= room]
    stage_rows = choose("stage_rows", options, default=max(fitting, default=1))
    return _Cut(column_tasks, row_tasks, stage_rows, part, width)


def _is_conv(sch: Schedule, anchor: Block) -> bool:
    return len(blocks.tile(sch, anchor)) > 1


def _is_product(sch: Schedule, anchor: Block) -> bool:
    return str(sch.get(anchor).annotations[FAMILY]) == "gemm"


def _kept() -> dict[str, Any]:
    return {FAMILY: CHAINED, ROLE: _STAGE}

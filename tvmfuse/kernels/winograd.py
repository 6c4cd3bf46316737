"""3 x 3 convolution of stride 1 by Winograd's minimal filtering, F(4 x 4, 3 x 3).

An output tile of 4 x 4 pixels takes 36 products for each pair of channels instead
of 144 (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015;
points 0, 1, -1, 2, -2). Tensors are channel-blocked as in
:mod:`tvmfuse.kernels.conv`; the filters are transformed when compiling.

A task takes some rows of tiles through all three steps, so that what lies between
them stays in the second-level cache: it transforms all input channels of a few rows
of tiles, and for each few output channels multiplies (36 products of tiles x
channels by channels x channels, by the register tile of a 1 x 1 convolution) and
transforms back within the epilogue.

Sums and differences of neighbours make the result less exact than the direct sum:
its error was measured as 5 to 10 times as large, 1e-5 against values of about 1
for 64 to 512 channels. An infinity or NaN in the image can reach all
of the tiles that read it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import blocks, conv
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE, Block, Choose, Loop, Schedule
from tvmfuse.kernels.image import Window, padded
from tvmfuse.kernels.tiling import (
    ConvTile,
    Machine,
    Tasks,
    ceil_div,
    choose_tasks,
    conv_tile,
    divisors,
)

Tensor = Any  # te.Tensor

OUT = 4  # pixels of an output tile along an axis
IN = 6  # pixels of the image that it reads

INPUT = (
    (4, 0, -5, 0, 1, 0),
    (0, -4, -4, 1, 1, 0),
    (0, 4, -4, -1, 1, 0),
    (0, -2, -1, 2, 1, 0),
    (0, 2, -1, -2, 1, 0),
    (0, 4, 0, -5, 0, 1),
)
OUTPUT = ((1, 1, 1, 1, 1, 0), (0, 1, -1, 2, -2, 0), (0, 1, 1, 4, 4, 0), (0, 1, -1, 8, -8, 1))
FILTER = (
    (1 / 4, 0, 0),
    (-1 / 6, -1 / 6, -1 / 6),
    (-1 / 6, 1 / 6, -1 / 6),
    (1 / 24, 1 / 12, 1 / 6),
    (1 / 24, -1 / 12, 1 / 6),
    (0, 0, 1),
)


_GAIN = 0.85  # part of the time of the direct sum below which it is worth its rounding
_TRANSFORM_CYCLES = 200  # for one tile of one vector of channels, measured on Zen 4
_DRAM_BYTES_PER_CYCLE = 8.0  # of all cores together, cycles of one: 10 to 30 GB/s


def is_faster(image: Sequence[int], filters: int, window: Window, machine: Machine) -> bool:
    """Whether fewer products outweigh the transforms, and reading four times the weights.

    Weights are taken to come from DRAM, as they do in a network of more layers than the
    caches hold; so small images of many channels stay direct.

    Parameters
    ----------
    image : sequence of int
        Batch, channels, height and width of the input.
    filters : int
        Channels of the result.
    window : Window
        Geometry.
    machine : Machine
        The device.
    """
    if window.kernel != (3, 3) or window.strides != (1, 1) or window.dilation != (1, 1):
        return False
    batch, channels, *size = image
    out_h, out_w = window.out(*size)
    if min(batch, channels, out_h, out_w) < 1:
        return False
    pairs = ceil_div(channels, machine.block) * ceil_div(filters, machine.block) * machine.block**2
    tiles = batch * ceil_div(out_h, OUT) * ceil_div(out_w, OUT)

    def cycles(products: int, taps: int) -> float:
        arithmetic = products * pairs / machine.lanes / machine.cores
        return arithmetic + 4 * taps * pairs / _DRAM_BYTES_PER_CYCLE

    transforms = tiles * (channels + filters) / machine.lanes * _TRANSFORM_CYCLES / machine.cores
    direct = cycles(batch * out_h * out_w * 9, 9)
    return cycles(tiles * IN * IN, IN * IN) + transforms < _GAIN * direct


def emit(x: Tensor, weight: Tensor, window: Window, machine: Machine) -> Tensor:
    """Emit a convolution.

    Parameters
    ----------
    x : te.Tensor
        (n, in / b, height, width, b), float32.
    weight : te.Tensor
        Transformed filters (out / b, 6, 6, in / b, b, b).
    window : Window
        3 x 3, neither strided nor dilated.
    machine : Machine
        The device.

    Returns
    -------
    te.Tensor
        (n, out / b, out height, out width, b).
    """
    batch, in_blocks, height, width, lanes = (int(d) for d in x.shape)
    out_blocks = int(weight.shape[0])
    out_h, out_w = window.out(height, width)
    down, across = ceil_div(out_h, OUT), ceil_div(out_w, OUT)
    image = padded(x, window, down * OUT, across * OUT)
    columns = te.compute(
        (batch, in_blocks, down, across, IN, IN, lanes),
        lambda n, c, h, w, b, i, ci: _combined(
            INPUT, b, lambda j: image[n, c, h * OUT + i, w * OUT + j, ci]
        ),
        name="columns",
        attrs={ROLE: "columns"},
    )
    v = te.compute(
        (batch, in_blocks, IN, IN, down, across, lanes),
        lambda n, c, a, b, h, w, ci: _combined(INPUT, a, lambda i: columns[n, c, h, w, b, i, ci]),
        name="transformed",
        attrs={ROLE: "transformed"},
    )
    c, ci = te.reduce_axis((0, in_blocks), "c"), te.reduce_axis((0, lanes), "ci")
    tile = conv_tile(down, across, out_blocks, machine, depth=in_blocks * lanes, is_exact=True)
    product = te.compute(
        (batch, out_blocks, IN, IN, down, across, lanes),
        lambda n, o, a, b, h, w, oi: te.sum(
            v[n, c, a, b, h, w, ci] * weight[o, a, b, c, ci, oi], axis=[c, ci]
        ),
        name="product",
        attrs={FAMILY: "winograd", ROLE: "anchor", TILE: [tile.height, tile.width, tile.blocks]},
    )
    back = te.compute(
        (batch, out_blocks, down, across, OUT, IN, lanes),
        lambda n, o, h, w, j, a, oi: _combined(OUTPUT, j, lambda b: product[n, o, a, b, h, w, oi]),
        name="back",
        attrs={ROLE: "back"},
    )
    return te.compute(
        (batch, out_blocks, out_h, out_w, lanes),
        lambda n, o, h, w, oi: _combined(
            OUTPUT, h % OUT, lambda a: back[n, o, h // OUT, w // OUT, w % OUT, a, oi]
        ),
        name="crop",
    )


def _combined(matrix: Any, row: Any, value: Any) -> Any:
    """Return one row of ``matrix`` times the vector of which ``value(i)`` is element i."""

    def of_row(coefficients: Any) -> Any:
        terms = [
            value(i) * tirx.const(float(f), "float32") if f != 1 else value(i)
            for i, f in enumerate(coefficients)
            if f
        ]
        total = terms[0]
        for term in terms[1:]:
            total = total + term
        return total

    # The row is a number where its loop is unrolled, and one branch is left.
    result = of_row(matrix[-1])
    for i in range(len(matrix) - 2, -1, -1):
        result = te.if_then_else(row == i, of_row(matrix[i]), result)
    return result


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule a convolution with its elementwise epilogue.

    Raises
    ------
    LoweringError
        The epilogue cannot be computed within the tile.
    """
    blocks.inline_all(sch)
    anchor, out = blocks.find(sch, "anchor"), blocks.sole_output(sch)
    tile = ConvTile(*blocks.tile(sch, anchor))
    product = sch.cache_write(anchor, 0, "global")
    n, o, h, w, oi = sch.get_loops(out)
    down, i = blocks.split(sch, h, [None, OUT])
    across, j = blocks.split(sch, w, [None, OUT])
    tasks, strips = _tasks(sch, anchor, tile, machine, choose)
    o_task, o_tile, o_in = blocks.split(sch, o, [tasks.columns, None, tile.blocks])
    h_task, strip, h_in = blocks.split(sch, down, [tasks.rows, strips, None])
    sch.reorder(n, o_task, h_task, strip, o_tile, h_in, across, o_in, j, i, oi)
    task = blocks.parallel(sch, [n, o_task, h_task], anchor, choose)
    _transform_back(sch, j, machine)
    for loop in (j, i):
        sch.unroll(loop)
    blocks.vectorize(sch, oi, machine.lanes)
    _multiply(sch, anchor, product, o_tile, tile, machine, choose)
    _transform_input(sch, strip, task, machine, choose)


def _transform_back(sch: Schedule, below: Loop, machine: Machine) -> None:
    back = blocks.find(sch, "back")
    sch.compute_at(back, below, preserve_unit_loops=True)
    a, lanes = sch.get_loops(back)[-2:]
    sch.unroll(a)
    blocks.vectorize(sch, lanes, machine.lanes)


def _multiply(
    sch: Schedule,
    anchor: Block,
    product: Block,
    below: Loop,
    tile: ConvTile,
    machine: Machine,
    choose: Choose,
) -> None:
    sch.compute_at(product, below, preserve_unit_loops=True)
    *_, o, a, b, h, w, lanes = sch.get_loops(product)
    h_tile, h_in = blocks.split(sch, h, [None, tile.height])
    w_tile, w_in = blocks.split(sch, w, [None, tile.width])
    sch.reorder(a, b, h_tile, w_tile, o, h_in, w_in, lanes)
    sch.compute_at(anchor, w_tile, preserve_unit_loops=True)
    conv.register_tile(sch, anchor, w_tile, machine, choose)
    blocks.vectorize(sch, lanes, machine.lanes)
    for loop in (o, h_in, w_in):
        sch.unroll(loop)


def _transform_input(
    sch: Schedule, strip: Loop, task: Loop, machine: Machine, choose: Choose
) -> None:
    transformed, columns = blocks.find(sch, "transformed"), blocks.find(sch, "columns")
    sch.compute_at(transformed, strip, preserve_unit_loops=True)
    *_, c, a, b, h, w, lanes = sch.get_loops(transformed)
    sch.reorder(c, h, w, b, a, lanes)
    sch.compute_at(columns, b, preserve_unit_loops=True)
    i, column_lanes = sch.get_loops(columns)[-2:]
    for loop in (b, a, i):
        sch.unroll(loop)
    for loop in (lanes, column_lanes):
        blocks.vectorize(sch, loop, machine.lanes)
    pad = blocks.find(sch, "pad")
    if pad is None:
        return
    if choose("pad_within", ("tap", "task"), default="tap") == "tap":
        sch.compute_inline(pad)
        return
    sch.compute_at(pad, task)
    sch.vectorize(sch.get_loops(pad)[-1])


def _tasks(
    sch: Schedule, anchor: Block, tile: ConvTile, machine: Machine, choose: Choose
) -> tuple[Tasks, int]:
    """Return how channels and rows of tiles are cut, and in how many strips a task goes."""
    axes = [int(axis.dom.extent) for axis in blocks.iter_vars(sch, anchor)]
    batch, out_blocks, _, _, down, across, lanes, in_blocks, _ = axes
    row_tiles, column_tiles = down // tile.height, out_blocks // tile.blocks
    image_bytes = 4 * IN * IN * down * across * in_blocks * lanes
    best = choose_tasks(
        column_tiles,
        row_tiles,
        machine,
        column_bytes=4 * IN * IN * out_blocks * in_blocks * lanes * lanes,
        row_bytes=image_bytes,
        outer=batch,
    )
    tasks = Tasks(
        choose("column_tasks", divisors(column_tiles), default=best.columns),
        choose("row_tasks", divisors(row_tiles), default=best.rows),
    )
    options = divisors(row_tiles // tasks.rows)
    fitting = [s for s in options if image_bytes // tasks.rows // s <= machine.l2_bytes // 2]
    return tasks, choose("strips", options, default=fitting[0] if fitting else options[-1])

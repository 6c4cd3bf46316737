"""A 1 x 1 convolution with what is computed of each pixel before it, in one kernel.

A task takes some pixels and channels of the result. For some of the pixels at a time it
computes what the convolution reads (the *stage*) into scratch that stays in the
second-level cache. Tasks that share pixels compute them again, which costs little.
"""

from __future__ import annotations

from tvmfuse.kernels import blocks, conv
from tvmfuse.kernels.blocks import Block, Choose, Schedule
from tvmfuse.kernels.tiling import ConvTile, Machine, divisors

_STAGE_SHARE = 0.5  # of the second-level cache, at most
# A stage is best near the first-level cache (see chained.py), but of enough tiles of pixels
# that the weights, which pass by once for each stage, do not come too often.
_STAGE_BYTES = 64 << 10
_STAGE_TILES = 8


def schedule(sch: Schedule, anchor: Block, stage: Block, machine: Machine, choose: Choose) -> None:
    """Schedule a 1 x 1 convolution, the stage that it reads within its pixels."""
    out, tile = blocks.sole_output(sch), ConvTile(*blocks.tile(sch, anchor))
    width = blocks.extent(sch, sch.get_loops(out)[3])
    sch.transform_block_layout(out, lambda n, o, h, w, oi: [n, o, h * width + w, oi])
    n, o, p, oi = sch.get_loops(out)
    tasks = conv.choose_cut(sch, anchor, tile, machine, choose)
    _, channels, pixels, block = blocks.axis_extents(sch, stage, reduced=False)
    tiles = _stage_tiles(
        pixels // tile.width // tasks.rows, 4 * channels * block * tile.width, machine, choose
    )
    o_task, o_tile, o_in = blocks.split(sch, o, [tasks.columns, None, tile.blocks])
    p_task, p_stage, p_tile, p_in = blocks.split(sch, p, [tasks.rows, None, tiles, tile.width])
    sch.reorder(n, o_task, p_task, p_stage, o_tile, p_tile, p_in, o_in, oi)
    sch.compute_at(anchor, p_tile, preserve_unit_loops=True)
    blocks.parallel(sch, [n, o_task, p_task], anchor, choose)
    sch.compute_at(stage, p_stage, preserve_unit_loops=True)
    blocks.vectorize(sch, sch.get_loops(stage)[-1], machine.lanes)
    conv.register_tile(sch, anchor, p_tile, machine, choose)
    blocks.vectorize(sch, oi, machine.lanes)
    for loop in (p_in, o_in):
        sch.unroll(loop)


def _stage_tiles(tiles: int, tile_bytes: int, machine: Machine, choose: Choose) -> int:
    """Return how many of the tiles of pixels of a task make a stage."""
    room = int(machine.l2_bytes * _STAGE_SHARE)
    wanted = min(max(_STAGE_BYTES, _STAGE_TILES * tile_bytes), room)
    options = divisors(tiles)
    default = max((d for d in options if d * tile_bytes <= wanted), default=1)
    return int(choose("stage_tiles", options, default=default))

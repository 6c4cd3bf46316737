"""Two matrix products, one after the other, in one kernel.

A task takes some rows. For a few of them at a time it computes what the first product
and its epilogue make of them (the *stage*) into scratch that stays in the second-level
cache, and multiplies that by the second weight. Both products have tiles of equally many
rows.
"""

from __future__ import annotations

from collections.abc import Sequence

from tvmfuse.kernels import blocks, gemm, reading
from tvmfuse.kernels.blocks import Block, Choose, Schedule
from tvmfuse.kernels.choices import prefixed
from tvmfuse.kernels.tiling import Machine, ceil_div, choose_tasks, divisors, step

# Of the second-level cache; the panels of both weights pass through the rest of it.
_STAGE_SHARE = 0.25
# Half-cycles (of tiling.step) that a stage takes for each vector of the weights to come from
# an outer cache: what 6 rows of 256 -> 1024 -> 256 lost to 1024 rows, on Sapphire Rapids.
_FETCH = 2.0


def rows_for(m: int, hidden: int, columns: Sequence[int], machine: Machine) -> int:
    """Return the rows of a tile of both products.

    Parameters
    ----------
    m : int
        Rows of both.
    hidden : int
        Columns of the first one.
    columns : sequence of int
        Width of the panels of each weight.
    machine : Machine
        The device.
    """
    vectors = [width // machine.lanes for width in columns]
    limit = min(m, *map(machine.max_rows, vectors))

    def cost(rows: int) -> float:
        tiles = ceil_div(m, rows)
        tasks = _tasks(tiles, machine)
        size = _stage_tiles(tiles // tasks, 4 * rows * hidden, machine)
        busiest = tiles // tasks * ceil_div(tasks, machine.cores)
        return busiest * sum(step(rows, width) + _FETCH * width / size for width in vectors)

    return min(range(1, limit + 1), key=lambda rows: (cost(rows), -rows))


def schedule(
    sch: Schedule, first: Block, second: Block, stage: Block, machine: Machine, choose: Choose
) -> None:
    """Schedule two products, the first one within the second one's rows."""
    # What stands between them is written of the rows of several batches: as TVM 0.27 inlines it,
    # it reads row i // n * n + i % n, of which nothing is known. This simplifies the index.
    sch.transform_layout(first, ("write", 0), lambda *index: index)
    i, j = reading.loops_as_read(sch, blocks.sole_output(sch), second)
    rows, columns = blocks.tile(sch, second)
    tasks, tiles = _cut(sch, second, stage, machine, choose)
    j_tile, j_in = blocks.split(sch, j, [None, columns])
    i_task, i_stage, i_tile, i_in = blocks.split(sch, i, [tasks, None, tiles, rows])
    sch.reorder(i_task, i_stage, j_tile, i_tile, i_in, j_in)
    sch.compute_at(second, i_tile, preserve_unit_loops=True)
    blocks.parallel(sch, [i_task], first, choose)
    sch.compute_at(stage, i_stage, preserve_unit_loops=True)
    _schedule_stage(sch, first, stage, machine, prefixed(choose, "first."))
    gemm.register_tile(sch, second, i_tile, machine, prefixed(choose, "second."))
    sch.unroll(i_in)
    blocks.vectorize(sch, j_in, machine.lanes)


def _schedule_stage(
    sch: Schedule, first: Block, stage: Block, machine: Machine, choose: Choose
) -> None:
    rows, columns = blocks.tile(sch, first)
    i, j = sch.get_loops(stage)[-2:]
    i_tile, i_in = blocks.split(sch, i, [None, rows])
    j_tile, j_in = blocks.split(sch, j, [None, columns])
    sch.reorder(j_tile, i_tile, i_in, j_in)
    sch.compute_at(first, i_tile, preserve_unit_loops=True)
    gemm.register_tile(sch, first, i_tile, machine, choose)
    sch.unroll(i_in)
    blocks.vectorize(sch, j_in, machine.lanes)


def _cut(
    sch: Schedule, second: Block, stage: Block, machine: Machine, choose: Choose
) -> tuple[int, int]:
    """Return the number of tasks, and the tiles of rows in a stage."""
    rows, _ = blocks.tile(sch, second)
    m, hidden = blocks.axis_extents(sch, stage, reduced=False)
    tiles = m // rows
    tasks = choose("row_tasks", divisors(tiles), default=_tasks(tiles, machine))
    default = _stage_tiles(tiles // tasks, 4 * rows * hidden, machine)
    return tasks, choose("stage_tiles", divisors(tiles // tasks), default=default)


def _tasks(tiles: int, machine: Machine) -> int:
    return choose_tasks(1, tiles, machine, column_bytes=1, row_bytes=1).rows


def _stage_tiles(tiles: int, tile_bytes: int, machine: Machine) -> int:
    """Return how many of the tiles of a task make a stage."""
    room = machine.l2_bytes * _STAGE_SHARE
    return max((d for d in divisors(tiles) if d * tile_bytes <= room), default=1)

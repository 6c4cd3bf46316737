"""Tile sizes obey their laws for every shape and every machine."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tvmfuse.kernels import tiling
from tvmfuse.kernels.tiling import ConvTile, GemmTile, Machine, Tasks, ceil_div

machines = st.builds(
    Machine,
    lanes=st.sampled_from([4, 8, 16]),
    registers=st.sampled_from([16, 32]),
    cores=st.integers(1, 64),
    l2_bytes=st.sampled_from([1 << 17, 1 << 19, 1 << 21]),
)
extents = st.integers(1, 600)
small = st.integers(1, 60)


def gemm_cost(tile: GemmTile, rows: int, columns: int, machine: Machine) -> float:
    steps = ceil_div(rows, tile.rows) * ceil_div(columns, tile.columns)
    return steps * tiling.step(tile.rows, tile.columns // machine.lanes)


@given(extents, extents, machines)
def test_a_gemm_tile_fits_the_registers_and_the_rows(
    rows: int, columns: int, machine: Machine
) -> None:
    tile = tiling.gemm_tile(rows, columns, machine)
    assert tile.columns % machine.lanes == 0
    assert 1 <= tile.rows <= rows
    assert tile.rows * (tile.columns // machine.lanes) <= machine.accumulators


@given(extents, extents, machines)
def test_a_gemm_tile_is_never_worse_than_one_vector(
    rows: int, columns: int, machine: Machine
) -> None:
    tile = tiling.gemm_tile(rows, columns, machine)
    naive = GemmTile(1, machine.lanes)
    costs = [gemm_cost(t, rows, columns, machine) for t in (tile, naive)]
    assert costs[0] <= costs[1]


@given(small, small, st.integers(1, 128), machines, st.integers(1, 5000))
def test_a_conv_tile_fits_the_registers_and_divides_the_blocks(
    height: int, width: int, blocks: int, machine: Machine, depth: int
) -> None:
    tile = tiling.conv_tile(height, width, blocks, machine, depth=depth)
    vectors = tile.blocks * (machine.block // machine.lanes)
    assert blocks % tile.blocks == 0
    assert tile.height <= height
    assert tile.width <= width
    assert tile.height * tile.width * vectors <= machine.accumulators


@given(small, small, st.integers(1, 128), machines)
def test_a_conv_tile_is_never_worse_than_one_pixel(
    height: int, width: int, blocks: int, machine: Machine
) -> None:
    vectors = machine.block // machine.lanes

    def cost(tile: ConvTile) -> float:
        steps = ceil_div(height, tile.height) * ceil_div(width, tile.width)
        step = tiling.step(tile.height * tile.width, tile.blocks * vectors)
        return steps * (blocks // tile.blocks) * step

    tile = tiling.conv_tile(height, width, blocks, machine, depth=1)
    assert cost(tile) <= cost(ConvTile(1, 1, 1))


def test_a_conv_tile_does_not_wait_for_its_weights() -> None:
    machine = Machine(lanes=16, registers=32, cores=2, l2_bytes=1 << 20)
    tile = tiling.conv_tile(14, 14, 16, machine, depth=256 * 9)
    assert 4 * 256 * 9 * tile.blocks * machine.block <= machine.l2_bytes // 2


@given(extents, machines)
def test_even_tiles_are_shared_evenly_or_not_worth_it(tiles: int, machine: Machine) -> None:
    found = tiling.even_tiles(tiles, machine)
    assert tiles <= found <= tiles * 17 / 16
    assert found % machine.cores == 0 or (-tiles % machine.cores) * 16 > tiles


@given(extents, machines)
def test_a_window_tile_fits_the_row_and_the_registers(width: int, machine: Machine) -> None:
    tile = tiling.window_tile(width, machine)
    assert 1 <= tile <= width
    assert tile <= machine.accumulators


@given(
    extents,
    extents,
    machines,
    st.integers(1, 1 << 24),
    st.integers(1, 1 << 24),
    st.integers(1, 16),
)
def test_tasks_divide_the_grid_of_tiles(
    columns: int, rows: int, machine: Machine, column_bytes: int, row_bytes: int, outer: int
) -> None:
    tasks = tiling.choose_tasks(
        columns, rows, machine, column_bytes=column_bytes, row_bytes=row_bytes, outer=outer
    )
    assert columns % tasks.columns == 0
    assert rows % tasks.rows == 0
    if tasks.columns * tasks.rows > 16 * machine.cores:  # fewer would leave a core idle
        counts = [c * r for c in tiling.divisors(columns) for r in tiling.divisors(rows)]
        few = [count for count in counts if count <= 16 * machine.cores]
        assert outer * max(few) < machine.cores


def test_rows_of_a_large_prime_are_shared_by_the_cores() -> None:
    machine = Machine(8, 16, cores=2, l2_bytes=1 << 20)
    found = tiling.choose_tasks(1, 59, machine, column_bytes=1, row_bytes=1)
    assert found == Tasks(1, 59)
    assert tiling.task_counts(59, machine) == ((1, 59), 59)
    assert tiling.task_counts(15, machine) == ((1, 3, 5, 15), 15)
    assert tiling.task_counts(64, machine) == ((1, 2, 4, 8, 16, 32), 2)


@given(extents, extents)
def test_one_core_gets_one_task(columns: int, rows: int) -> None:
    machine = Machine(8, 16, cores=1, l2_bytes=1 << 19)
    found = tiling.choose_tasks(columns, rows, machine, column_bytes=1, row_bytes=1)
    assert found == Tasks(1, 1)


@given(st.sampled_from([2, 4, 8]), st.integers(1, 8))
def test_a_grid_that_allows_it_keeps_every_core_busy(cores: int, factor: int) -> None:
    machine = Machine(8, 16, cores, 1 << 20)
    grid = cores * factor
    tasks = tiling.choose_tasks(grid, grid, machine, column_bytes=1 << 16, row_bytes=1 << 16)
    assert tasks.columns * tasks.rows % cores == 0


@given(machines)
def test_a_large_product_fills_the_registers(machine: Machine) -> None:
    tile = tiling.gemm_tile(5040, 5040, machine)
    assert tile.rows == machine.max_rows(tile.columns // machine.lanes)


@given(st.integers(1, 5000))
def test_divisors_are_all_divisors(n: int) -> None:
    assert tiling.divisors(n) == tuple(d for d in range(1, n + 1) if n % d == 0)


@given(st.integers(0, 10**6), st.integers(1, 1000))
def test_rounding_up_gives_the_next_multiple(a: int, b: int) -> None:
    assert tiling.round_up(a, b) % b == 0
    assert 0 <= tiling.round_up(a, b) - a < b

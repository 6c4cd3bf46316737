"""Choose tile sizes from shapes and the device: plain arithmetic, no TVM.

A register tile keeps its accumulators in vector registers through the whole
reduction. Per step of the reduction it issues one multiply-add per accumulator
and loads each of its rows and columns once; a core starts two of either per
cycle, and a multiply-add waits four cycles for its accumulator, so fewer than
eight accumulators leave units idle (:func:`step`). The tiles of the well-known
libraries (BLIS 6 x 16 and 32 x 12, MLAS 6 x 16, oneDNN 3 pixels x 4 channel
blocks) are optima of this rule under their number of registers; it also weighs
the work wasted in ragged edges.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

MAX_COLUMN_VECTORS = 4
MAX_UNROLLED = 512  # vector instructions in one unrolled loop
_MANY_REGISTERS = 32
_MIN_ACCUMULATORS = 8  # two units x four cycles of latency
_L1_BYTES = 32 << 10  # the smallest first-level cache of today's cores
_SMALL_WASTE = 16  # one tile in so many may be wasted for the sake of balance
_LOAD_WEIGHT = 0.1  # loads are mostly hidden behind arithmetic, not wholly


@dataclass(frozen=True)
class Machine:
    """What a schedule may count on.

    Parameters
    ----------
    lanes : int
        Float32 elements of one vector register.
    registers : int
        Vector registers.
    cores : int
        Threads that run at once.
    l2_bytes : int
        Second-level cache of one core, in bytes.
    holds_rows : bool
        Whether every row of a tile needs a register for its operand, as on Arm, which
        multiplies by a lane of a register; x86 broadcasts from memory.
    dot : str
        Instruction that sums products of 8-bit integers (``gemm.dots``), or "".
    reserved : int
        Vector registers that a tile leaves to intermediate values.
    """

    lanes: int
    registers: int
    cores: int
    l2_bytes: int
    holds_rows: bool = False
    dot: str = ""
    reserved: int = 0

    @property
    def accumulators(self) -> int:
        """Vector registers that may hold accumulators, beside one column operand."""
        return self.registers - self.reserved - self._spare - 1

    def max_rows(self, columns: int) -> int:
        """Return the rows of the largest tile that fits the registers.

        LLVM needs one more register than the operands; with 32 of them it moves loads
        ahead and needs three (counted in its assembly, see tests/kernels/test_assembly.py).

        Parameters
        ----------
        columns : int
            Vectors beside each other; each is also an operand.
        """
        free = self.registers - self.reserved - columns
        if self.holds_rows:
            return max(1, free // (columns + 1))
        return max(1, (free - self._spare) // columns)

    @property
    def _spare(self) -> int:
        return 3 if self.registers >= _MANY_REGISTERS else 1

    @property
    def block(self) -> int:
        """Channels in one block of a channel-blocked tensor: one vector, at least 8."""
        return max(8, self.lanes)


@dataclass(frozen=True)
class GemmTile:
    """Register tile of a matrix product: ``rows`` x ``columns`` elements."""

    rows: int
    columns: int


@dataclass(frozen=True)
class ConvTile:
    """Register tile of a convolution: pixels and channel blocks."""

    height: int
    width: int
    blocks: int


@dataclass(frozen=True)
class Tasks:
    """How a kernel is cut into parallel tasks: parts by columns (or channels) and by rows."""

    columns: int
    rows: int


def gemm_tile(m: int, n: int, machine: Machine) -> GemmTile:
    """Choose the register tile of an ``m`` x ``n`` product.

    Parameters
    ----------
    m, n : int
        Rows and columns of the result.
    machine : Machine
        The device.

    Returns
    -------
    GemmTile
        ``columns`` is a multiple of the lanes.
    """

    def cost(tile: GemmTile) -> float:
        vectors = tile.columns // machine.lanes
        steps = ceil_div(m, tile.rows) * ceil_div(n, tile.columns)
        return steps * step(tile.rows, vectors)

    tiles = [
        GemmTile(rows, vectors * machine.lanes)
        for vectors in range(1, MAX_COLUMN_VECTORS + 1)
        for rows in range(1, min(m, machine.max_rows(vectors)) + 1)
    ]
    return min(tiles, key=lambda tile: (cost(tile), -tile.columns))


def conv_tile(
    height: int, width: int, blocks: int, machine: Machine, *, depth: int, is_exact: bool = False
) -> ConvTile:
    """Choose the register tile of a channel-blocked convolution.

    Every tile of pixels reads the weights of its channel blocks anew. While these fit a
    cache, that is hidden behind arithmetic; a wide tile of few pixels would wait for them.

    Parameters
    ----------
    height, width : int
        Output pixels; a height of 1 where the pixels form one row.
    blocks : int
        Output channel blocks.
    machine : Machine
        The device.
    depth : int
        Products in one result: input channels x window.
    is_exact : bool
        Whether the tile must divide the image.

    Returns
    -------
    ConvTile
        ``blocks`` divides the number of channel blocks.
    """
    vectors = machine.block // machine.lanes

    def cost(tile: ConvTile) -> float:
        pixels, columns = tile.height * tile.width, tile.blocks * vectors
        steps = ceil_div(height, tile.height) * ceil_div(width, tile.width)
        waiting = columns * _fetch(4 * depth * tile.blocks * machine.block, machine)
        return steps * (blocks // tile.blocks) * max(step(pixels, columns), waiting)

    tiles = [
        ConvTile(rows, pixels, part)
        for part in divisors(blocks)
        if part * vectors <= 2 * MAX_COLUMN_VECTORS
        for pixels in range(1, min(width, machine.max_rows(part * vectors)) + 1)
        for rows in range(1, min(height, machine.max_rows(part * vectors) // pixels) + 1)
        if rows == 1 or pixels == width
        if not is_exact or (height % rows, width % pixels) == (0, 0)
    ]
    return min(tiles, key=lambda tile: (cost(tile), tile.height, -tile.width))


def window_tile(width: int, machine: Machine) -> int:
    """Choose how many neighbouring pixels of a depthwise or pooling window share a tile."""
    limit = max(1, machine.accumulators // 2)
    return min(range(1, min(width, limit) + 1), key=lambda t: (ceil_div(width, t) * (t + 2), -t))


def choose_tasks(
    column_tiles: int,
    row_tiles: int,
    machine: Machine,
    *,
    column_bytes: int,
    row_bytes: int,
    outer: int = 1,
) -> Tasks:
    """Cut a grid of tiles into tasks that keep all cores busy with data in cache.

    A task sweeps its rows once per column tile. Cutting rows makes every task
    read the whole of the column operand (weights); cutting columns makes every
    task read (and where needed pad) the whole of the row operand.

    Parameters
    ----------
    column_tiles, row_tiles : int
        Extent of the grid.
    machine : Machine
        The device.
    column_bytes, row_bytes : int
        Bytes of the operand of all columns and of all rows.
    outer : int
        Independent repetitions (batch), parallel as well.

    Returns
    -------
    Tasks
        Both parts divide their extents.
    """
    cut = machine.cores > 1

    def cost(tasks: Tasks) -> float:
        count = outer * tasks.columns * tasks.rows
        rounds = ceil_div(count, machine.cores) * machine.cores / count
        moved = tasks.rows * column_bytes + tasks.columns * row_bytes
        return (rounds - 1.0) + 0.05 * moved / (column_bytes + row_bytes) + _spill(tasks)

    def _spill(tasks: Tasks) -> float:
        rows = row_bytes / tasks.rows
        return 0.1 * min(rows / machine.l2_bytes, 4.0) if rows > machine.l2_bytes / 2 else 0.0

    choices = [
        Tasks(columns, rows) for columns in divisors(column_tiles) for rows in divisors(row_tiles)
    ]
    enough = [t for t in choices if outer * t.columns * t.rows >= machine.cores]
    few = [t for t in enough or choices if t.columns * t.rows <= 16 * machine.cores]
    choices = few or enough  # of a large prime there are none: many tasks are better than one
    return min(choices, key=lambda t: (cost(t), t.columns * t.rows)) if cut else Tasks(1, 1)


def task_counts(tiles: int, machine: Machine) -> tuple[tuple[int, ...], int]:
    """Return into how many equal tasks some tiles may be cut, and which count is best.

    A count is at most 16 for each core; of a large prime, whose tasks would be too few for
    the cores, it may be the next larger one.
    """
    counts = divisors(tiles)
    options = tuple(count for count in counts if count <= 16 * machine.cores)
    if options[-1] < machine.cores:
        options = counts[: len(options) + 1]

    def shared(count: int) -> float:
        return ceil_div(count, machine.cores) * machine.cores / count

    return options, min(options, key=lambda count: (shared(count), count))


def step(rows: int, columns: int) -> float:
    """Half-cycles that one step of the reduction takes in a tile."""
    return max(rows * columns, rows + columns, _MIN_ACCUMULATORS) + _LOAD_WEIGHT * (rows + columns)


def _fetch(size: int, machine: Machine) -> float:
    """Half-cycles that one vector takes to come from the cache that holds ``size`` bytes.

    A core reads 32 bytes a cycle from its second-level cache, and about half of that from
    the third (AMD's and Intel's optimisation manuals; measured on Zen 4).
    """
    if size <= _L1_BYTES // 2:
        return 1.0
    cycles = 4 * machine.lanes / (32 if size <= machine.l2_bytes // 2 else 16)
    return 2 * cycles


def even_tiles(tiles: int, machine: Machine) -> int:
    """Return ``tiles``, or some more where the cores can then share them evenly.

    Of 523 tiles, which is prime, two cores would get one task; of 524 they get two.
    """
    even = round_up(tiles, machine.cores)
    return even if (even - tiles) * _SMALL_WASTE <= tiles else tiles


def divisors(n: int) -> tuple[int, ...]:
    """Return the divisors of ``n``, ascending."""
    small = [d for d in range(1, math.isqrt(n) + 1) if n % d == 0]
    return tuple(sorted({*small, *(n // d for d in small)}))


def unrollings(steps: int, body: int) -> tuple[int, ...]:
    """Return the divisors of ``steps`` by which a loop may be unrolled.

    Parameters
    ----------
    steps : int
        Trip count of the loop.
    body : int
        Vector instructions in one step: beyond some hundred, LLVM takes seconds and the code
        leaves the caches.
    """
    return tuple(d for d in divisors(steps) if d <= 4 or d * body <= MAX_UNROLLED)


def ceil_div(a: int, b: int) -> int:
    """Return ``a / b`` rounded up."""
    return -(-a // b)


def round_up(a: int, b: int) -> int:
    """Return the smallest multiple of ``b`` that is at least ``a``."""
    return ceil_div(a, b) * b


def product(values: Iterable[int]) -> int:
    """Return the product of ``values``."""
    return math.prod(values)

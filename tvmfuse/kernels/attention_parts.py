"""What an attention is, how it is cut into tiles, and which rows a tile holds."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tvmfuse._tvm import tirx
from tvmfuse.kernels.blocks import Choose, default_choice
from tvmfuse.kernels.statements import Expr
from tvmfuse.kernels.tiling import Machine, ceil_div, round_up

Result = Callable[..., list[Expr]]
"""``result(batch, head, query, column)`` returns where an element of the context is stored."""

LOWEST = -3.4028234663852886e38  # a peak to begin with: minus infinity would give inf - inf
_COLUMN_VECTORS = 2
_VECTORS = (1, 2, 4)
_ROWS = (1, 2, 4, 6, 8, 10, 12)
_BLOCKS = (128, 256, 512, 1024)
_UNROLL = 4
_UNROLLS = (1, 2, 4, 8)
_BLOCK_KEYS = 512  # of one block: its keys and values, and the scores of a tile, fit L2
_TASK_ROWS = 2048  # whose contexts a task carries; packing anew for every so many is 1 %


@dataclass(frozen=True)
class Attention:
    """What is attended to, as element access in the order batch, head, row, column.

    Parameters
    ----------
    batch, heads, queries, keys : int
        Extents.
    depth, width : int
        Length of a query and a key, and of a value.
    query, key, value : callable
        Return the element at (batch, head, row, column); keys and values at a key head.
        Scales and casts of the operands belong here: each element is read once per pass.
    score : callable
        Turns a product into a score, given its indices (batch, query head, query, key):
        scales it, adds the mask. Minus infinity hides a key.
    key_heads : int
        Heads of keys and values, a divisor of ``heads``; query head h reads key head
        ``h // (heads / key_heads)``. 0 stands for as many as there are query heads.
    causal : int or None
        Query i sees the keys up to ``i + causal`` only; None where it may see all of them.
        With past keys before the new ones, their number.
    zero_masked_rows : bool
        Whether a row whose every score is minus infinity gives zeros; else NaN.
    """

    batch: int
    heads: int
    queries: int
    keys: int
    depth: int
    width: int
    query: Callable[..., Expr]
    key: Callable[..., Expr]
    value: Callable[..., Expr]
    score: Callable[..., Expr]
    key_heads: int = 0
    causal: int | None = None
    zero_masked_rows: bool = False

    @property
    def group(self) -> int:
        """Query heads that share one key head."""
        return self.heads // self.key_heads if self.key_heads else 1


@dataclass(frozen=True)
class Tiles:
    """Sizes of the tiles.

    Parameters
    ----------
    rows : int
        Query rows of a register tile.
    key_columns, columns : int
        Columns of a register tile of scores and of contexts.
    keys : int
        Keys of one block, a multiple of ``key_columns``.
    per_head : int
        Register tiles of the rows of one key head.
    splits : int
        Tasks among which they are dealt out in turn.
    unroll : int
        Steps of a product in one turn of its loop, where that divides them.
    """

    rows: int
    key_columns: int
    columns: int
    keys: int
    per_head: int
    splits: int
    unroll: int

    @property
    def per_task(self) -> int:
        """Register tiles of the largest task."""
        return ceil_div(self.per_head, self.splits)


@dataclass(frozen=True)
class FewTiles:
    """How an attention of few rows is dealt out.

    Parameters
    ----------
    lanes : int
        Of a vector.
    keys : int
        Keys of one block.
    columns : int
        Columns of the contexts that are summed in registers at once.
    splits : int
        Tasks among which the keys of each head are split.
    heads : int
        Key heads of a task, one after the other.
    is_parallel : bool
        Whether tasks run on all threads.
    """

    lanes: int
    keys: int
    columns: int
    splits: int
    heads: int
    is_parallel: bool


def tiles(a: Attention, machine: Machine, choose: Choose = default_choice) -> Tiles:
    """Choose the tiles: registers full, keys and scores in cache, all cores at work."""
    n_rows = a.group * a.queries

    def vectors(name: str, extent: int) -> int:
        # Two vectors of columns leave most registers to rows, each of which reads all keys.
        options = tuple(n for n in _VECTORS if n == 1 or n <= ceil_div(extent, machine.lanes))
        default = max(n for n in options if n <= _COLUMN_VECTORS)
        return machine.lanes * int(choose(name, options, default=default))

    columns, key_columns = vectors("columns", a.width), vectors("key_columns", a.keys)
    limit = machine.max_rows(max(columns, key_columns) // machine.lanes)
    default = ceil_div(n_rows, ceil_div(n_rows, limit))
    fewer = (n for n in _ROWS if n <= min(limit, n_rows))
    rows = int(choose("rows", tuple(sorted({default, *fewer})), default=default))
    sizes = {n: round_up(max(1, min(a.keys, n)), key_columns) for n in _BLOCKS}
    keys = int(choose("keys", tuple(sorted(set(sizes.values()))), default=sizes[_BLOCK_KEYS]))
    per_head = ceil_div(n_rows, rows)
    heads = a.batch * (a.heads // a.group)
    fewest = splits = ceil_div(n_rows, _TASK_ROWS)
    while heads * splits < 4 * machine.cores and (heads * splits) % machine.cores:
        splits += 1
    parts = {min(n, per_head) for n in (fewest, splits, 2 * splits, 4 * splits)}
    splits = int(choose("splits", tuple(sorted(parts)), default=min(splits, per_head)))
    unroll = int(choose("unroll", _UNROLLS, default=_UNROLL))
    return Tiles(rows, key_columns, columns, keys, per_head, splits, unroll)


class RowTile:
    """Neighbouring query rows of one key head: query head by query head, query by query."""

    def __init__(self, a: Attention, b: Expr, key_head: Expr, first_row: Expr, rows: int) -> None:
        self.b, self.first_row, self.count = b, first_row, a.group * a.queries
        self._a, self._key_head, self._rows = a, key_head, rows

    def place(self, r: Expr) -> tuple[Expr, Expr]:
        """Return query head and query of row ``r``; rows too many repeat the last one."""
        row = at_most(self.first_row + r, self.count, self.count % self._rows != 0)
        if self._a.group == 1:
            return self._key_head, row
        return self._key_head * self._a.group + row // self._a.queries, row % self._a.queries

    @property
    def first(self) -> Expr:
        """The first query of the tile; query 0 where it begins within one head's queries."""
        return self._bounds()[0]

    @property
    def last(self) -> Expr:
        """The last query of the tile."""
        return self._bounds()[1]

    def _bounds(self) -> tuple[Expr, Expr]:
        queries = self._a.queries
        if self._a.group == 1:
            return self.first_row, least(self.first_row + (self._rows - 1), queries - 1)
        first = self.first_row % queries
        is_whole = first + self._rows <= queries  # all rows are of one head
        zero = tirx.const(0, "int32")
        last = tirx.const(queries - 1, "int32")
        return (
            tirx.Select(is_whole, first, zero),
            tirx.Select(is_whole, first + (self._rows - 1), last),
        )


def at_most(index: Expr, extent: int, is_needed: bool) -> Expr:  # noqa: FBT001
    """Limit an index to those below ``extent``, where it can exceed them."""
    return tirx.Min(index, tirx.const(extent - 1, "int32")) if is_needed else index


def least(a: Expr, b: int) -> Expr:
    """Return the smaller one."""
    return tirx.Min(a, tirx.const(b, "int32"))


def inverse_of(total: Expr, a: Attention) -> Expr:
    """Return one over the sum of a row; zero where a row without weights gives zeros.

    Where there are no keys at all a context is a sum over nothing, and zero as in NumPy.
    """
    inverse = tirx.const(1.0, "float32") / total
    return (
        tirx.Select(total > tirx.const(0.0, "float32"), inverse, total)
        if a.zero_masked_rows or not a.keys
        else inverse
    )

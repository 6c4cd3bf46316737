"""Attention by an online softmax: scores, softmax and context of one tile at a time.

No score matrix lies in memory, and what a task holds does not grow with the keys. A task
owns a share of the query rows of one key head. It packs one block of keys and values, and
sweeps its rows over the block in register tiles as in :mod:`tvmfuse.kernels.gemm`; each row
carries its peak, its sum and its context from block to block, which are scaled down where
a higher peak turns up (Milakov and Gimelshein; FlashAttention). The sums stay one per vector
lane, and the division by them happens once, at the end.

Few rows are left to :mod:`.attention_few`, which packs nothing.

Query heads that share one key head are rows of one matrix: nothing is repeated for them,
and a single query of a group of heads fills a register tile.

Blocks that a causal mask hides from every row of a tile are never computed; a mask that is
known only at run time is part of the score. A row that sees no key at all gives NaN as the
softmax in NumPy and ONNX Runtime does, or zeros where the model guards against it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse._tvm import tirx
from tvmfuse.kernels import attention_few, attention_source, blocks
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.attention_parts import Attention, Result, RowTile, inverse_of, tiles
from tvmfuse.kernels.attention_steps import Steps
from tvmfuse.kernels.blocks import Choose, Schedule, default_choice
from tvmfuse.kernels.statements import Buffer, Expr, Stmt
from tvmfuse.kernels.tiling import Machine, ceil_div

Tensor = Any  # te.Tensor

_FAMILY = "attention"
_ORDER = "order"
_MIN_PARALLEL_STEPS = 200_000  # multiply-adds that are worth waking threads, see blocks.py


def emit(
    describe: Callable[..., Attention],
    operands: Sequence[Tensor],
    machine: Machine,
    *,
    order: tuple[int, ...] = (0, 1, 2, 3),
    rank: int = 4,
) -> Tensor:
    """Emit attention in float32.

    Parameters
    ----------
    describe : callable
        ``describe(*buffers)`` returns the attention over the memory of ``operands``.
    operands : Sequence[te.Tensor]
        What it reads.
    machine : Machine
        The device.
    order : tuple of int
        Axes of the result: which of batch, head, row, column comes where.
    rank : int
        Rank of the result; one of rank 3 has no batch, whose extent is 1.

    Returns
    -------
    te.Tensor
        The context, its axes in ``order``.
    """
    a = describe(*operands)
    extents = (a.batch, a.heads, a.queries, a.width)
    shape = [extents[axis] for axis in order][len(order) - rank :]
    about = {**attention_source.about(a), _ORDER: list(order)}

    def body(buffers: Sequence[Buffer], out: Buffer) -> Stmt:
        found = describe(*buffers)
        made = st.Made(_FAMILY, buffers, [out], about)
        kept = attention_source.kept(found)
        return _kernel(found, made, machine, default_choice).tasks(kept)

    return st.kernel(_FAMILY, shape, operands, body)


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Write the kernel with the decisions taken."""
    made = st.made(sch, _FAMILY)
    if made is not None:  # else as :func:`emit` wrote it
        (block,) = blocks.children(sch)
        a = attention_source.read(sch.get(block).body.seq[0], made.about)
        st.replace(sch, _kernel(a, made, machine, choose).tasks())


def _kernel(
    a: Attention, made: st.Made, machine: Machine, choose: Choose
) -> _Kernel | attention_few.Kernel:
    (out,) = made.results
    order = [int(axis) for axis in made.about[_ORDER]]

    def result(*at: Expr) -> list[Expr]:
        return [at[axis] for axis in order][len(at) - len(out.shape) :]

    if attention_few.fits(a, machine):
        return attention_few.Kernel(a, made, result, attention_few.tiles(a, machine, choose))
    return _Kernel(a, made, result, machine, choose)


class _Kernel:
    """The tasks of one attention."""

    def __init__(
        self, a: Attention, made: st.Made, result: Result, machine: Machine, choose: Choose
    ) -> None:
        self._a, self._made, self._result, self._lanes = a, made, result, machine.lanes
        (self._out,) = made.results
        self._t = tiles(a, machine, choose)
        self._steps = Steps(a, self._t, machine.lanes)
        self._count = a.batch * (a.heads // a.group) * self._t.splits
        steps = a.batch * a.heads * a.queries * a.keys * (a.depth + a.width)
        can_share = self._count > 1
        options = (False, True) if can_share else (False,)
        default = can_share and steps >= _MIN_PARALLEL_STEPS
        self._is_parallel = choose("is_parallel", options, default=default)

    def tasks(self, kept: Stmt | None = None) -> Stmt:
        """Return the whole kernel; what is to be ``kept`` stands before the work of a task."""
        t, key_heads = self._t, self._a.heads // self._a.group

        def task(i: Expr) -> Stmt:
            head = i // t.splits
            work = self._task(head // key_heads, head % key_heads, i % t.splits)
            whole = work if kept is None else st.seq([kept, work])
            return st.holding(self._steps.memory, whole, made=self._made)

        return st.tasks(self._count, task, is_parallel=self._is_parallel)

    def _task(self, b: Expr, head: Expr, share: Expr) -> Stmt:
        t, a, steps = self._t, self._a, self._steps
        blocks = ceil_div(a.keys, t.keys)
        tiles = t.per_head // t.splits + tirx.Cast("int32", share < t.per_head % t.splits)

        def block(n: Expr) -> Stmt:
            first = n * t.keys

            def tile(i: Expr) -> Stmt:
                rows = RowTile(a, b, head, (share + i * t.splits) * t.rows, t.rows)
                return steps.tile(rows, i, first)

            pack = st.seq([steps.pack_keys(b, head, first), steps.pack_values(b, head, first)])
            return st.seq([pack, st.loop(tiles, tile)])

        def finish(i: Expr) -> Stmt:
            rows = RowTile(a, b, head, (share + i * t.splits) * t.rows, t.rows)
            return self._finish(rows, i)

        return st.seq([steps.begin(), st.loop(blocks, block), st.loop(tiles, finish)])

    def _finish(self, rows: RowTile, i: Expr) -> Stmt:
        """Return the division by the sums, and the store of the result."""
        a, t = self._a, self._t
        (total,) = st.registers(1, 1, "total")

        def row(r: Expr) -> Stmt:
            head, query = rows.place(r)
            sums = self._steps.sums
            add = [st.store(total, sums[i, r, 0], 0)]
            add += [st.store(total, total[0] + sums[i, r, v], 0) for v in range(1, self._lanes)]
            inverse = inverse_of(total[0], a)

            def element(p: Expr, v: Expr) -> Stmt:
                at = self._result(rows.b, head, query, p * t.columns + v)
                return st.store(self._out, self._steps.context[i, p, r, v] * total[0], *at)

            def chunk(p: Expr, width: int) -> Stmt:
                return st.vectors(width, self._lanes, lambda v: element(p, v))

            panels, rest = divmod(a.width, t.columns)
            stores = [st.loop(panels, lambda p: chunk(p, t.columns))] if panels else []
            if rest:
                stores.append(chunk(tirx.const(panels, "int32"), rest))
            return st.seq([*add, st.store(total, inverse, 0), *stores])

        return st.holding(
            [total], st.loop(t.rows, lambda r: st.when(rows.first_row + r < rows.count, row(r)))
        )

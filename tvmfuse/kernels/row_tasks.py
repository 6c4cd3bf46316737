"""The schedule of reductions, softmax and norms: each task owns whole rows.

A row is read once from memory; its statistics, and what several steps share (the
exponentials of a softmax, the sum of two tensors that a norm reads and the graph too),
stay in scratch that is as large as the row. A reduction of everything to one number has
no rows: its inner axis is reduced by all threads, and what they leave by one.
"""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import s_tir
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import blocks
from tvmfuse.kernels.blocks import Block, Choose, Loop, Schedule
from tvmfuse.kernels.rows import AXES, INNER
from tvmfuse.kernels.tiling import Machine, divisors, product

_MIN_PARALLEL_ELEMENTS = 16384  # below this, starting threads costs more than it saves
_MAX_COLUMNS = 16
_UNROLLS = (1, 2, 4)  # steps of a sum in one turn of its loop
_VECTORS = (1, 2, 4)  # written in one turn
_KEPT_AXIS = 0


def schedule(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Schedule the steps of one or more reductions and what is computed from them.

    Raises
    ------
    LoweringError
        The steps do not share rows.
    """
    axes = _axes_of_all(sch)
    rank = _rank(sch)
    blocks.inline_cheap(sch)
    *others, out = blocks.outputs(sch)
    loops = _parted(sch, sch.get_loops(out), axes, rank)
    if product(blocks.extents(sch, _spatial_loops(sch, out))) == 1:
        _to_one(sch, machine, choose)
        return
    is_full = len(loops) == rank and not blocks.is_reduction(sch, out)
    within = [loops[a] for a in sorted(axes)] if is_full else []
    outside = [
        loop
        for i, loop in enumerate(loops)
        if not (is_full and i in axes) and i < _spatial(sch, out)
    ]
    row = _by_rows(sch, out, others, outside, within, machine, choose)
    shapes = {tuple(blocks.axis_extents(sch, block, reduced=False)) for block in [out, *others]}
    if within and len(shapes) == 1 and next(iter(shapes))[-1] % machine.lanes == 0:
        blocks.stream(sch, row, out, choose)


def _by_rows(
    sch: Schedule,
    out: Block,
    others: list[Block],
    outside: list[Loop],
    within: list[Loop],
    machine: Machine,
    choose: Choose,
) -> Loop:
    """Compute every other block within one row, or one vector of neighbouring rows.

    Returns the loop over the rows.
    """
    is_large = _work(sch) >= _MIN_PARALLEL_ELEMENTS
    is_parallel = choose("is_parallel", (False, True), default=is_large)
    unroll = choose("unroll", _UNROLLS, default=1)
    last = sch.get_loops(out)[-1]
    last_is_row = bool(outside) and not (within and blocks.same_loop(sch, within[-1], last))
    lanes: list[Loop] = []
    if last_is_row and not others and _is_vectorizable(sch, out, outside[-1], machine):
        count = product(blocks.extents(sch, outside))
        width = machine.lanes * _columns(count, blocks.extent(sch, outside[-1]), machine, choose)
        rest, vector = blocks.split(sch, outside[-1], [None, width])
        outside, lanes = [*outside[:-1], rest], [vector]
    reduced = blocks.own_reduction_loops(sch, out)
    sch.reorder(*outside, *within, *reduced, *lanes)
    if not outside:
        raise LoweringError("a tensor of one row leaves nothing to share out")
    row = sch.fuse(*outside) if len(outside) > 1 else outside[0]
    steps = [
        block
        for block in reversed(blocks.children(sch))
        if not any(blocks.same(sch, block, other) for other in [out, *others])
    ]
    shared = _rows_of(sch, others, row, sorted(_axes_of_all(sch)))
    for block in steps:
        _compute_within(sch, block, [row, *shared])
        sch.set_scope(block, 0, "local")  # on the stack, see _tvm/registers.py
    if shared:
        row = sch.merge(*shared, row)
    if is_parallel:
        sch.parallel(row)
    if lanes:
        blocks.vectorize(sch, lanes[0], machine.lanes)
    elif within:
        _vectorize_last(sch, within[-1], machine, choose)
    for block in [*steps, *others]:
        _vectorize_row(sch, block, row, machine, unroll)
    if reduced:
        _unroll_last(sch, reduced, unroll)
        sch.decompose_reduction(out, reduced[0])
    return row


def _vectorize_last(sch: Schedule, loop: Loop, machine: Machine, choose: Choose) -> None:
    """Vectorise what is written of a row, by one vector or several beside each other."""
    size = blocks.extent(sch, loop)
    counts = tuple(n for n in _VECTORS if n == 1 or size % (n * machine.lanes) == 0)
    count = choose("vectors", counts, default=1)
    if count == 1:
        blocks.vectorize_with_tail(sch, loop, machine.lanes)
        return
    _, inner = blocks.split(sch, loop, [None, count * machine.lanes])
    blocks.vectorize(sch, inner, machine.lanes)


def _unroll_last(sch: Schedule, reduced: list[Loop], unroll: int) -> None:
    """Unroll the innermost loop of a sum by as many steps as divide it, ``unroll`` at most."""
    extent = blocks.extent(sch, reduced[-1])
    steps = next(n for n in range(unroll, 0, -1) if extent % n == 0)
    if steps > 1:
        rest, inner = blocks.split(sch, reduced[-1], [None, steps])
        sch.unroll(inner)
        reduced[-1] = rest


def _vectorize_row(
    sch: Schedule, block: Block, row: Loop | None, machine: Machine, unroll: int
) -> None:
    """Vectorise a step below ``row``, or one that stands in no row."""
    if row is None:
        reduced = blocks.own_reduction_loops(sch, block)
        spatial = _spatial_loops(sch, block)
    else:
        spatial, reduced = blocks.inner_loops(sch, block, row)
    vector = [loop for loop in spatial if blocks.extent(sch, loop) > 1]
    if reduced:
        sch.reorder(*reduced, *spatial)
    if vector and _is_whole(sch, block, vector[-1], machine):
        blocks.vectorize(sch, vector[-1], machine.lanes)
    elif vector and not reduced:
        blocks.vectorize_with_tail(sch, vector[-1], machine.lanes)
    if reduced:
        _unroll_last(sch, reduced, unroll)
        sch.decompose_reduction(block, reduced[0])


def _compute_within(sch: Schedule, block: Block, rows: list[Loop]) -> None:
    """Compute a step within the rows of the result that it is for."""
    for row in rows[:-1]:
        try:
            sch.compute_at(block, row, preserve_unit_loops=True)
            return
        except s_tir.ScheduleError:
            continue
    sch.compute_at(block, rows[-1], preserve_unit_loops=True)


def _rows_of(sch: Schedule, others: list[Block], row: Loop, axes: list[int]) -> list[Loop]:
    """Return the rows of the other results, to be merged with the last one, which may read them.

    Raises
    ------
    LoweringError
        They have other rows.
    """
    results = {sch.get(block).writes[0].source for block in others}
    for block in blocks.children(sch):
        statement = sch.get(block)
        (written,) = statement.writes
        for read in statement.reads:
            if read.source in results and not _is_same_row(read, written, axes):
                raise LoweringError("a result is read across its rows")
    rows = []
    for block in others:
        loops = sch.get_loops(block)
        outside = [loop for i, loop in enumerate(loops) if i not in axes]
        sch.reorder(*outside, *(loop for i, loop in enumerate(loops) if i in axes))
        rows.append(sch.fuse(*outside) if len(outside) > 1 else outside[0])
    if any(blocks.extent(sch, loop) != blocks.extent(sch, row) for loop in rows):
        raise LoweringError("the results have different rows")
    return rows


def _is_same_row(read: Any, written: Any, axes: list[int]) -> bool:
    pairs = zip(read.region, written.region, strict=False)
    return len(read.region) == len(written.region) and all(
        str(a.min) == str(b.min) and int(a.extent) == 1
        for i, (a, b) in enumerate(pairs)
        if i not in axes
    )


def _to_one(sch: Schedule, machine: Machine, choose: Choose) -> None:
    """Reduce everything to one number: the rows of the inner axis by tasks, the rest by one."""
    rows = next((b for b in blocks.children(sch) if blocks.role(sch, b) == INNER), None)
    if rows is None:
        raise LoweringError("a reduction to one number has no rows")
    before = list(sch.get_producers(rows))
    after = [
        block
        for block in blocks.children(sch)
        if not any(blocks.same(sch, block, other) for other in [rows, *before])
    ]
    *outer, _ = sch.get_loops(rows)
    row = sch.fuse(*outer) if len(outer) > 1 else outer[0]
    for block in before:
        sch.compute_at(block, row, preserve_unit_loops=True)
        sch.set_scope(block, 0, "local")
    is_large = _work(sch) >= _MIN_PARALLEL_ELEMENTS
    if choose("is_parallel", (False, True), default=is_large):
        sch.parallel(row)
    unroll = choose("unroll", _UNROLLS, default=1)
    for block in before:
        _vectorize_row(sch, block, row, machine, unroll)
    for block in after:
        if blocks.is_reduction(sch, block):
            _vectorize_row(sch, block, None, machine, unroll)


def _is_vectorizable(sch: Schedule, out: Block, loop: Any, machine: Machine) -> bool:
    return blocks.extent(sch, loop) % machine.lanes == 0 and blocks.is_last_axis(sch, out, loop)


def _is_whole(sch: Schedule, block: Block, loop: Any, machine: Machine) -> bool:
    """Whether ``loop`` is over a few whole vectors: partial sums, or neighbouring rows."""
    extent = blocks.extent(sch, loop)
    return extent % machine.lanes == 0 and extent <= _MAX_COLUMNS * machine.lanes


def _columns(count: int, extent: int, machine: Machine, choose: Choose) -> int:
    """Choose how many vectors of neighbouring rows a task reduces beside each other.

    More of them read longer stretches of memory; fewer leave work for all cores.
    """
    vectors, tasks = extent // machine.lanes, count // machine.lanes
    counts = tuple(n for n in divisors(vectors) if n <= _MAX_COLUMNS)
    default = max(n for n in counts if n == 1 or tasks >= 2 * n * machine.cores)
    return int(choose("columns", counts, default=default))


def _parted(sch: Schedule, loops: list[Loop], axes: set[int], rank: int) -> list[Loop]:
    """Split the loop over channels of a result whose rows are groups of channels."""
    last = rank - len(axes) - 1
    if len(loops) != rank - 1 or last < 0 or axes != set(range(last + 1, rank)):
        return loops
    statistic = next(block for block in blocks.children(sch) if _axes(sch, block))
    groups = int(sch.get(statistic).writes[0].source.ty.shape[last])
    if blocks.extent(sch, loops[last]) % groups:
        return loops
    parts = blocks.split(sch, loops[last], [groups, None])
    return [*loops[:last], *parts, *loops[last + 1 :]]


def _axes_of_all(sch: Schedule) -> set[int]:
    return {a for block in blocks.children(sch) for a in _axes(sch, block)}


def _axes(sch: Schedule, block: Block) -> tuple[int, ...]:
    return tuple(int(a) for a in sch.get(block).annotations.get(AXES, ()))


def _rank(sch: Schedule) -> int:
    ranks = {
        len(region.region)
        for block in blocks.children(sch)
        if _axes(sch, block)
        for region in sch.get(block).writes
    }
    if len(ranks) != 1:
        raise LoweringError("reductions over tensors of different rank share no rows")
    return ranks.pop()


def _spatial_loops(sch: Schedule, block: Block) -> list[Loop]:
    reduced = blocks.own_reduction_loops(sch, block)
    return [
        loop
        for loop in sch.get_loops(block)
        if not any(blocks.same_loop(sch, loop, other) for other in reduced)
    ]


def _spatial(sch: Schedule, block: Block) -> int:
    return sum(int(axis.iter_type) == _KEPT_AXIS for axis in blocks.iter_vars(sch, block))


def _work(sch: Schedule) -> int:
    return max(
        product(int(axis.dom.extent) for axis in blocks.iter_vars(sch, block))
        for block in blocks.children(sch)
    )

"""Questions about, and small steps on, the blocks of an S-TIR schedule.

A kernel family marks the blocks that it emits with a *role* (``anchor``, ``pad``,
``pack``), so that its schedule finds them by what they are, never by name.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from tvmfuse._tvm import s_tir, streaming, tirx, tvm, tvm_ffi
from tvmfuse.errors import LoweringError
from tvmfuse.kernels.tiling import product

FAMILY = "tvmfuse.family"
ROLE = "tvmfuse.role"
TILE = "tvmfuse.tile"
KEPT = "kept"  # the role of what is never computed within its reader

# Multiply-adds below which waking threads costs more than it saves: about 2 us of one core.
_MIN_PARALLEL_STEPS = 200_000
_STACK_BYTES = 1024  # TVM's kMaxStackAlloca
_MIN_STREAMED_BYTES = 16 << 20
_DOUBT = 16  # far from that, nobody needs to try

Schedule = Any  # s_tir.Schedule
Block = Any  # s_tir.schedule.SBlockRV
Loop = Any  # s_tir.schedule.LoopRV

T = TypeVar("T")
Choose = Callable[..., Any]  # choose(name, options, default=...) -> one of the options


def default_choice(_name: str, _options: Sequence[T], *, default: T) -> T:
    """Take every decision by its default: the zero-trial kernel."""
    return default


def children(sch: Schedule) -> list[Block]:
    """Return the blocks directly below the root, in program order."""
    return list(sch.get_child_blocks(sch.get_sblock("root")))


def is_made_of_blocks(function: Any) -> bool:
    """Whether a function computes in blocks that say what they write.

    Others call the runtime (sorting), or write wherever their operands say (scattering).
    """
    body = function.body
    if not isinstance(body, s_tir.SBlockRealize) or str(body.block.name_hint) != "root":
        return False
    found: list[Any] = []
    tvm_ffi.structural_walk(body.block.body, (s_tir.SBlock, found.append))
    return any(block.writes or FAMILY in block.annotations for block in found)


def role(sch: Schedule, block: Block) -> str:
    """Return the role that a family gave to ``block``, or ""."""
    return str(sch.get(block).annotations.get(ROLE, ""))


def find(sch: Schedule, name: str) -> Block | None:
    """Return the first block with role ``name``, or None."""
    return next(iter(find_all(sch, name)), None)


def find_all(sch: Schedule, name: str) -> list[Block]:
    """Return every block with role ``name``, in program order."""
    return [block for block in children(sch) if role(sch, block) == name]


def tile(sch: Schedule, block: Block) -> tuple[int, ...]:
    """Return the tile sizes with which the family emitted ``block``."""
    return tuple(int(size) for size in sch.get(block).annotations[TILE])


def is_reduction(sch: Schedule, block: Block) -> bool:
    """Whether ``block`` has a reduction axis."""
    return any(
        int(axis.iter_type) == int(tirx.IterVar.CommReduce) for axis in iter_vars(sch, block)
    )


def is_conversion(sch: Schedule, block: Block) -> bool:
    """Whether ``block`` writes another type than it reads."""
    statement = sch.get(block)
    (source,), (result,) = statement.reads, statement.writes
    return str(source.source.dtype) != str(result.source.dtype)


def iter_vars(sch: Schedule, block: Block) -> list[Any]:
    """Return the axes of ``block``."""
    return list(sch.get(block).iter_vars)


def axis_extents(sch: Schedule, block: Block, *, reduced: bool) -> list[int]:
    """Return the extents of the axes of ``block``: the reduced ones or the others."""
    return [
        int(axis.dom.extent)
        for axis in iter_vars(sch, block)
        if (int(axis.iter_type) == int(tirx.IterVar.CommReduce)) == reduced
    ]


def outputs(sch: Schedule) -> list[Block]:
    """Return the blocks that write a parameter of the function."""
    params = list(sch.mod["main"].params)
    return [block for block in children(sch) if _writes_any(sch, block, params)]


def extent(sch: Schedule, loop: Loop) -> int:
    """Return the trip count of ``loop``.

    Raises
    ------
    LoweringError
        It is symbolic.
    """
    value = sch.get(loop).extent
    if not isinstance(value, int | tirx.IntImm):
        raise LoweringError(f"a loop of static extent is required, but found extent {value}")
    return int(value)


def extents(sch: Schedule, loops: Sequence[Loop]) -> list[int]:
    """Return the trip counts of ``loops``."""
    return [extent(sch, loop) for loop in loops]


def inline_all(sch: Schedule) -> None:
    """Inline every elementwise block that is neither marked nor an output.

    Raises
    ------
    LoweringError
        A block has to keep its result in memory.
    """
    results = outputs(sch)
    for block in children(sch):
        if role(sch, block) or is_reduction(sch, block) or _contains(sch, results, block):
            continue
        try:
            sch.compute_inline(block)
        except s_tir.ScheduleError as error:
            raise LoweringError(
                f"block {sch.get(block).name_hint} cannot be computed within its consumers"
            ) from error


def sole_output(sch: Schedule) -> Block:
    """Return the only output block.

    Raises
    ------
    LoweringError
        There are several.
    """
    found = outputs(sch)
    if len(found) != 1:
        raise LoweringError(f"one output is required, but the kernel has {len(found)}")
    return found[0]


def inner_loops(sch: Schedule, block: Block, outer: Loop) -> tuple[list[Loop], list[Loop]]:
    """Split the loops of ``block`` below ``outer`` into spatial and reduction loops."""
    loops = sch.get_loops(block)
    names = [sch.get(loop).loop_var for loop in loops]
    outer_var = sch.get(outer).loop_var
    start = next(i for i, var in enumerate(names) if var.same_as(outer_var)) + 1
    reduced = reduction_vars(sch, block)
    inner = loops[start:]
    is_reduced = [any(sch.get(loop).loop_var.same_as(var) for var in reduced) for loop in inner]
    spatial = [loop for loop, yes in zip(inner, is_reduced, strict=True) if not yes]
    return spatial, [loop for loop, yes in zip(inner, is_reduced, strict=True) if yes]


def reduction_vars(sch: Schedule, block: Block) -> list[Any]:
    """Return the loop variables that drive the reduction axes of ``block``."""
    realized = realize(sch, block)
    found: list[Any] = []
    for axis, value in zip(realized.block.iter_vars, realized.iter_values, strict=True):
        if int(axis.iter_type) == int(tirx.IterVar.CommReduce):
            tvm_ffi.structural_walk(value, (tirx.Var, found.append))
    return found


def split(sch: Schedule, loop: Loop, factors: Sequence[int | None]) -> list[Loop]:
    """Split ``loop``; one factor may be None, and stands for what is left."""
    return list(sch.split(loop, list(factors), preserve_unit_iters=True))


def parallel(
    sch: Schedule, loops: Sequence[Loop], anchor: Block, choose: Choose = default_choice
) -> Loop:
    """Fuse ``loops`` into one, parallel where the anchor's work is worth waking threads."""
    fused = sch.fuse(*loops) if len(loops) > 1 else loops[0]
    steps = product(int(axis.dom.extent) for axis in iter_vars(sch, anchor))
    default = steps >= _MIN_PARALLEL_STEPS
    is_doubtful = 1 / _DOUBT <= steps / _MIN_PARALLEL_STEPS <= _DOUBT
    if choose("is_parallel", (False, True) if is_doubtful else (default,), default=default):
        sch.parallel(fused)
    return fused


def stream(sch: Schedule, loop: Loop, out: Block, choose: Choose = default_choice) -> None:
    """Let the vectors of a large result, stored below ``loop``, pass by the caches.

    Each must begin at a multiple of its length. From some 8 MiB on this is faster even where
    the result is read next (measured on Sapphire Rapids): the line is not fetched before it
    is written, and much of the result would have left the caches by then.
    """
    buffer = sch.get(out).writes[0].source
    n_bytes = product(int(d) for d in buffer.ty.shape) * tvm.DataType(str(buffer.dtype)).itemsize
    if n_bytes < _MIN_STREAMED_BYTES // 2:
        return
    if choose("is_streamed", (False, True), default=n_bytes >= _MIN_STREAMED_BYTES):
        sch.annotate(loop, streaming.PRAGMA, 1)


def vectorize(sch: Schedule, loop: Loop, lanes: int) -> Loop:
    """Vectorise ``loop`` by ``lanes``; whole vectors beyond the first are unrolled."""
    size = extent(sch, loop)
    if size == 1:
        return loop
    if size > lanes and size % lanes == 0:
        outer, inner = split(sch, loop, [None, lanes])
        sch.unroll(outer)
        sch.vectorize(inner)
        return outer
    sch.vectorize(loop)
    return loop


def hold(sch: Schedule, block: Block, elements: int) -> None:
    """Keep the ``elements`` float32 sums of a tile where LLVM finds registers for them.

    TVM 0.27 lays a buffer of scope "global" on the stack where it is smaller than 1 KiB, and
    LLVM promotes it; for any other scope or size it asks its pool of memory in each task,
    and branches, as those at the edge of an image, then spill all sums.
    """
    if 4 * elements >= _STACK_BYTES:
        sch.set_scope(block, 0, "local")


def own_reduction_loops(sch: Schedule, block: Block) -> list[Loop]:
    """Return the loops around ``block`` that drive its reduction axes."""
    if not is_reduction(sch, block):
        return []
    reduced = reduction_vars(sch, block)
    return [
        loop
        for loop in sch.get_loops(block)
        if any(sch.get(loop).loop_var.same_as(var) for var in reduced)
    ]


def inline_cheap(sch: Schedule) -> None:
    """Inline elementwise blocks, but keep what several readers would compute again.

    A block that a family marked as a ``row`` holds what is worth keeping; one with a
    single reader, or one that only adds or multiplies once, is not.
    """
    results = outputs(sch)
    for block in children(sch):
        if is_reduction(sch, block) or _contains(sch, results, block):
            continue
        mark = role(sch, block)
        if mark == KEPT or (mark and readers(sch, block) > 1):
            continue
        try:
            sch.compute_inline(block)
        except s_tir.ScheduleError:
            continue  # it is computed within the row


def readers(sch: Schedule, block: Block) -> int:
    """Return how many blocks read what ``block`` writes."""
    return len(sch.get_consumers(block))


def same(sch: Schedule, a: Block, b: Block) -> bool:
    """Whether two references name one block."""
    return bool(sch.get(a).same_as(sch.get(b)))


def same_loop(sch: Schedule, a: Loop, b: Loop) -> bool:
    """Whether two references name one loop; each query makes new references."""
    return bool(sch.get(a).loop_var.same_as(sch.get(b).loop_var))


def is_last_axis(sch: Schedule, block: Block, loop: Loop) -> bool:
    """Whether ``loop`` alone drives the last axis of what ``block`` writes."""
    statement = sch.get(block)
    index = statement.writes[0].region[-1].min
    axis = next((a for a in statement.iter_vars if a.var.same_as(index)), None)
    if axis is None:
        return False
    realized = realize(sch, block)
    value = realized.iter_values[list(statement.iter_vars).index(axis)]
    return bool(sch.get(loop).loop_var.same_as(value))


def split_with_tail(sch: Schedule, loop: Loop, lanes: int) -> tuple[Loop, Loop]:
    """Split ``loop`` by ``lanes``; where that leaves a rest, give it code of its own."""
    size = extent(sch, loop)
    outer, inner = split(sch, loop, [None, lanes])
    mark_tail(sch, outer, size, lanes)
    return outer, inner


def mark_tail(sch: Schedule, outer: Loop, size: int, lanes: int) -> None:
    """Give code of its own to what ``outer``, a loop over vectors of ``lanes``, leaves.

    Without the hint, every vector would be tested against the bound. TVM 0.27 generates
    code of mixed types for the hint where loops count in int64, as those of its own
    kernels for static shapes do at times: these are tested.
    """
    is_narrow = str(sch.get(outer).loop_var.ty.dtype) == "int32"
    if size % lanes and is_narrow:
        sch.annotate(outer, "pragma_loop_partition_hint", 1)


def vectorize_with_tail(sch: Schedule, loop: Loop, lanes: int) -> None:
    """Vectorise ``loop`` by ``lanes``; see :func:`split_with_tail`."""
    if extent(sch, loop) < lanes:
        return
    _, inner = split_with_tail(sch, loop, lanes)
    sch.vectorize(inner)


def realize(sch: Schedule, block: Block) -> Any:
    """Return the statement that runs ``block`` within its loops."""
    stmt = sch.get(sch.get_loops(block)[-1]).body
    while not isinstance(stmt, s_tir.SBlockRealize):
        stmt = stmt.body
    return stmt


def _writes_any(sch: Schedule, block: Block, params: Sequence[Any]) -> bool:
    return any(
        any(region.source.same_as(param) for param in params) for region in sch.get(block).writes
    )


def _contains(sch: Schedule, blocks: Sequence[Block], block: Block) -> bool:
    return any(sch.get(other).same_as(sch.get(block)) for other in blocks)

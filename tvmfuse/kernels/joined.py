"""Independent kernels in one launch, as Inductor's combo kernels and XLA's horizontal fusion.

A group of siblings (the projections to Q, K and V, the branches of an Inception
module) lowers to a function of several parts that share no result. Each part is
scheduled by its own family. Then the tasks of all parts are dealt out to one
parallel loop, so that each thread gets its share of every part: equally long
pieces of the loop hold equally large pieces of each part.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse._tvm import s_tir, tirx, tvm_ffi
from tvmfuse.errors import LoweringError
from tvmfuse.kernels.blocks import Choose
from tvmfuse.kernels.choices import prefixed
from tvmfuse.kernels.tiling import product

Function = Any  # tirx.PrimFunc
Stmt = Any  # tirx.Stmt
SchedulePart = Callable[[Function, Choose], Function]

# Steps of all loops below which waking threads costs more than it saves.
_MIN_PARALLEL_STEPS = 200_000

# More steps than these share the work no better, and each has to find its bounds.
_MAX_STEPS = 256


def split(function: Function) -> list[Function]:
    """Return the parts of a kernel that share no result, as functions of their own.

    Parameters
    ----------
    function : tirx.PrimFunc
        Unscheduled S-TIR: loop nests, one after another.

    Returns
    -------
    list of tirx.PrimFunc
        In program order; just ``function`` where everything hangs together. They have
        those of its parameters that they use, in its order.
    """
    nests = _nests(function.body.block.body)
    if len(nests) < 2:
        return [function]
    members = _components(nests)
    return [function] if len(members) == 1 else [_part(function, part) for part in members]


def join(
    function: Function, parts: Sequence[Function], schedule_part: SchedulePart, choose: Choose
) -> Function:
    """Schedule each part, and run them as one.

    Parameters
    ----------
    function : tirx.PrimFunc
        What :func:`split` took apart.
    parts : Sequence[tirx.PrimFunc]
        Its parts.
    schedule_part : callable
        Schedules one part with the decisions of a ``choose``.
    choose : callable
        Takes each decision; those of a part begin with its number.

    Returns
    -------
    tirx.PrimFunc
        With the parameters of ``function`` and at most one parallel loop.

    Raises
    ------
    LoweringError
        A part is no kernel by itself: it has several parallel loops.
    """
    roots = _scheduled(parts, schedule_part, choose)
    loops = [_parallel_loop(root.body) for root in roots]
    is_large = sum(map(_steps, parts)) >= _MIN_PARALLEL_STEPS or any(loops)
    body = _dealt_out([root.body for root in roots], loops, is_parallel=is_large)
    return _function(function, function.params, body, _buffers(roots))


def in_sequence(
    function: Function, parts: Sequence[Function], schedule_part: SchedulePart, choose: Choose
) -> Function:
    """Schedule each part, and run them one after another: what :func:`join` falls back to."""
    roots = _scheduled(parts, schedule_part, choose)
    body = tirx.SeqStmt([root.body for root in roots])
    return _function(function, function.params, body, _buffers(roots))


def _scheduled(parts: Sequence[Function], schedule_part: SchedulePart, choose: Choose) -> list[Any]:
    """Schedule each part; return their outermost blocks."""
    functions = [schedule_part(part, prefixed(choose, f"{i}.")) for i, part in enumerate(parts)]
    return [part.body.block for part in functions]


def _dealt_out(bodies: Sequence[Stmt], loops: Sequence[Any], *, is_parallel: bool) -> Stmt:
    """Return one loop whose steps each hold their share of every part.

    A part of ``n`` tasks gives step ``p`` of ``steps`` the tasks from ``p * n / steps`` to
    ``(p + 1) * n / steps``, rounded down. Parts of a single task are shifted, so that
    they do not all meet in the last step.
    """
    tasks = [1 if loop is None else int(loop.extent) for loop in loops]
    singles = [i for i, n in enumerate(tasks) if n == 1]
    steps = max(min(_MAX_STEPS, max(tasks)), len(singles) if is_parallel else 1)
    step = tirx.Var("step", "int64")
    shares = []
    for i, (body, loop) in enumerate(zip(bodies, loops, strict=True)):
        shift = singles.index(i) * steps // len(singles) if i in singles else 0
        shares.append(_share(body, loop, step, steps, shift))
    kind = tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL
    return tirx.For(step, _int64(0), _int64(steps), kind, tirx.SeqStmt(shares))


def _share(body: Stmt, loop: Any, step: Any, steps: int, shift: int) -> Stmt:
    """Return the tasks of one part that belong to ``step``."""
    n = _int64(1 if loop is None else int(loop.extent))
    first = tirx.floordiv(step * n + _int64(shift), _int64(steps))
    last = tirx.floordiv((step + _int64(1)) * n + _int64(shift), _int64(steps))
    if loop is None and steps == 1:
        return body
    if loop is None:
        return tirx.IfThenElse(first < last, body, None)
    own, dtype = loop.loop_var, str(loop.loop_var.ty.dtype)
    if int(n) == steps:
        # Not a loop of one step: where parts are joined from parts, TVM loses its beginning.
        at = step if dtype == "int64" else tirx.Cast(dtype, step)
        return tvm_ffi.structural_map(
            loop.body, (tirx.Var, lambda var: at if var.same_as(own) else var)
        )
    begin, count = first, last - first
    if dtype != "int64":
        begin, count = tirx.Cast(dtype, begin), tirx.Cast(dtype, count)
    annotations = dict(loop.annotations)
    return tirx.For(own, begin, count, tirx.ForKind.SERIAL, loop.body, annotations=annotations)


def _parallel_loop(body: Stmt) -> Any:
    """Return the loop around a part that is parallel; None where the part is serial.

    Raises
    ------
    LoweringError
        It is not the only one, or not around everything.
    """
    if _is_parallel(body) and isinstance(body.extent, int | tirx.IntImm):
        return body
    found: list[Any] = []
    tvm_ffi.structural_walk(body, (tirx.For, lambda loop: found.append(loop)))
    if any(_is_parallel(loop) for loop in found):
        raise LoweringError("a part of it has a parallel loop that does not hold all of it")
    return None


def _is_parallel(stmt: Stmt) -> bool:
    return isinstance(stmt, tirx.For) and int(stmt.kind) == int(tirx.ForKind.PARALLEL)


def _steps(part: Function) -> int:
    """Return how often the blocks of an unscheduled part run."""
    found = [_block(nest) for nest in _nests(part.body.block.body)]
    extents = [[axis.dom.extent for axis in block.iter_vars] for block in found]
    if not all(isinstance(d, int | tirx.IntImm) for sizes in extents for d in sizes):
        raise LoweringError("parts of symbolic extents cannot be shared out")
    return sum(product(int(d) for d in sizes) for sizes in extents)


def _nests(body: Stmt) -> list[Stmt]:
    return list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]


def _block(nest: Stmt) -> Any:
    """Return the block in a loop nest, as every operator lowers to one."""
    while isinstance(nest, tirx.For):
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize):
        raise LoweringError("a part of it is no loop nest around one block")
    return nest.block


def _components(nests: Sequence[Stmt]) -> list[list[Stmt]]:
    """Return the loop nests in sets that hang together by what they write."""
    parts: list[tuple[list[int], set[Any]]] = []
    for i, block in enumerate(map(_block, nests)):
        written = {region.source for region in block.writes}
        touched = written | {region.source for region in block.reads}
        near = [part for part in parts if part[1] & touched]
        members = sorted([i, *(j for part in near for j in part[0])])
        parts = [part for part in parts if part not in near]
        parts.append((members, written.union(*(part[1] for part in near))))
    return [[nests[i] for i in members] for members in sorted(part[0] for part in parts)]


def _part(function: Function, nests: Sequence[Stmt]) -> Function:
    """Return some loop nests of a function as a function of their own."""
    used = {
        region.source for block in map(_block, nests) for region in (*block.reads, *block.writes)
    }
    body = tirx.SeqStmt(list(nests)) if len(nests) > 1 else nests[0]
    buffers = [buffer for buffer in function.body.block.alloc_buffers if buffer in used]
    params = [param for param in function.params if param in used]
    return _function(function, params, body, buffers)


def _function(like: Function, params: Sequence[Any], body: Stmt, buffers: Sequence[Any]) -> Any:
    root = s_tir.SBlock([], [], [], "root", body, alloc_buffers=list(buffers))
    realize = s_tir.SBlockRealize([], predicate=True, block=root)
    return tirx.PrimFunc(list(params), realize, like.ret_type, like.attrs)


def _buffers(roots: Sequence[Any]) -> list[Any]:
    return [buffer for root in roots for buffer in root.alloc_buffers]


def _int64(value: int) -> Any:
    return tirx.const(value, "int64")

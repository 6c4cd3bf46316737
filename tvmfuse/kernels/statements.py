"""Statements of TIR, for the few kernels that no tensor expression can state.

A running softmax updates what it has computed before, and a recurrent cell reads what
the step before it wrote. Their families write loops and stores by these functions; what
they make stands in one opaque block (:func:`kernel`), which no schedule takes apart. It
says what it was made from (:class:`Made`), though, so that a schedule can write it anew
with other decisions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvmfuse._tvm import s_tir, te, tirx, tvm
from tvmfuse.kernels.blocks import FAMILY, Schedule, children

Buffer = Any  # tirx.Buffer
Expr = Any  # tirx.PrimExpr
Stmt = Any  # tirx.Stmt
Tensor = Any  # te.Tensor
Body = Callable[[Expr], Stmt]

_PLACES = "tvmfuse.places"  # of the operands among what a block reads, once each


def kernel(
    name: str,
    shape: Sequence[int],
    operands: Sequence[Tensor],
    body: Callable[[Sequence[Buffer], Buffer], Stmt],
) -> Tensor:
    """Return the float32 tensor that ``body(operands, result)`` computes; see :func:`kernels`."""
    (result,) = kernels([(name, shape)], operands, lambda ins, outs: body(ins, outs[0]))
    return result


def kernels(
    results: Sequence[tuple[str, Sequence[Expr]]],
    operands: Sequence[Tensor],
    body: Callable[[Sequence[Buffer], Sequence[Buffer]], Stmt],
) -> list[Tensor]:
    """Return the float32 tensors that ``body(operands, results)`` computes.

    Parameters
    ----------
    results : sequence of (str, sequence of int)
        What each result is called, and its shape.
    operands : Sequence[te.Tensor]
        What it reads.
    body : callable
        Returns the statement, given a buffer for every operand and for every result.
    """
    # A tensor that is two operands is one buffer: TVM would let two of them read the same memory.
    own = {x: tirx.decl_buffer(x.shape, x.dtype, x.op.name) for x in dict.fromkeys(operands)}
    ins = [own[x] for x in operands]
    outs = [tirx.decl_buffer(shape, "float32", name) for name, shape in results]

    def statement(_ins: Any, _outs: Any) -> Stmt:
        return body(ins, outs)

    found = te.extern(
        [list(shape) for _, shape in results],
        list(own),
        statement,
        name="root",  # TVM adds no root block around one opaque block: it is the root
        in_buffers=list(own.values()),
        out_buffers=outs,
    )
    return [found] if len(results) == 1 else list(found)


@dataclass(frozen=True)
class Made:
    """What a block of statements was made from.

    Parameters
    ----------
    family : str
        Whose it is.
    operands, results : sequence of tirx.Buffer
        What it reads and writes.
    about : Mapping of str to object
        What else its family has to know to write it: numbers, texts, and lists of them.
    """

    family: str
    operands: Sequence[Buffer] = ()
    results: Sequence[Buffer] = ()
    about: Mapping[str, Any] = field(default_factory=dict)


def made(sch: Schedule, family: str) -> Made | None:
    """Return what the block of a kernel was made from; None where there is more in the kernel."""
    found = [sch.get(block) for block in children(sch)]
    if len(found) != 1 or str(found[0].annotations.get(FAMILY, "")) != family:
        return None
    (block,) = found
    about = {str(n): value for n, value in block.annotations.items() if n not in (FAMILY, _PLACES)}
    read, results = ([r.source for r in regions] for regions in (block.reads, block.writes))
    operands = [read[int(place)] for place in block.annotations[_PLACES]]
    return Made(family, operands, results, about)


def replace(sch: Schedule, body: Stmt) -> None:
    """Let a kernel of one block of statements do ``body`` instead."""
    root = sch.get_sblock("root")
    old = sch.get(root)
    new = s_tir.SBlock(old.iter_vars, old.reads, old.writes, old.name_hint, body)
    sch.state.replace(sch.get_sref(root), new, {old: new})


def scratch(shape: Sequence[int], name: str) -> Buffer:
    """Return a float32 buffer for :func:`holding`."""
    return tirx.decl_buffer(shape, "float32", name)


def registers(count: int, size: int, name: str) -> list[Buffer]:
    """Return buffers that LLVM keeps in registers where only constants index them.

    TVM 0.27 puts what has less than 1 KiB on the stack, where LLVM can promote it, and
    more into memory of its runtime, to which LLVM would write every value back.
    """
    return [tirx.decl_buffer((size,), "float32", name, scope="local") for _ in range(count)]


def holding(buffers: Sequence[Buffer], stmt: Stmt, *, made: Made | None = None) -> Stmt:
    """Return ``stmt`` with memory for ``buffers``, as the block of what it was made from."""
    marks, reads, writes = {}, [], []
    if made is not None:
        read = list(dict.fromkeys(made.operands))
        places = [read.index(operand) for operand in made.operands]
        marks = {FAMILY: made.family, _PLACES: places, **made.about}
        reads, writes = ([_whole(b) for b in part] for part in (read, made.results))
    block = s_tir.SBlock(
        [], reads, writes, "task", stmt, alloc_buffers=list(buffers), annotations=marks
    )
    return s_tir.SBlockRealize([], tirx.const(1, "bool"), block)


def store(buffer: Buffer, value: Expr, *index: Expr) -> Stmt:
    """Return the assignment of ``value`` to an element."""
    return tirx.BufferStore(buffer, value, list(index))


def number(value: int) -> Expr:
    """Return a 32-bit integer."""
    return tirx.const(value, "int32")


def f32(value: float) -> Expr:
    """Return a float32 number."""
    return tirx.const(value, "float32")


def loop(extent: Expr, body: Body) -> Stmt:
    """Return ``body(i)`` for every ``i`` below ``extent``, one after the other."""
    return _loop(extent, body, tirx.ForKind.SERIAL)


def tasks(extent: int, body: Body, *, is_parallel: bool) -> Stmt:
    """Return ``body(i)`` for every ``i`` below ``extent``, on all threads if ``is_parallel``."""
    return _loop(extent, body, tirx.ForKind.PARALLEL if is_parallel else tirx.ForKind.SERIAL)


def together(stmt: Stmt) -> Stmt:
    """Return ``stmt`` with its threads started once: :func:`tasks` in it share them."""
    return _pragma("parallel_launch_point", stmt)


def before_others(stmt: Stmt) -> Stmt:
    """Return tasks after which all threads wait for each other; only within :func:`together`."""
    return _pragma("parallel_barrier_when_finish", stmt)


def _pragma(name: str, stmt: Stmt) -> Stmt:
    return tirx.AttrStmt(number(0), f"pragma_{name}", number(1), stmt)


def unrolled(extent: int, body: Body) -> Stmt:
    """Return a statement for each of few ``i``."""
    return seq([body(number(i)) for i in range(extent)])


def vectors(extent: int, lanes: int, body: Body) -> Stmt:
    """Return ``body(i)`` for every ``i`` below ``extent`` as instructions of ``lanes`` each.

    What fills no vector is done by narrower ones: TVM 0.27 takes wider and odd vectors too,
    but LLVM breaks up those whose length is no power of two element by element.
    """
    parts, start = [], 0
    while start < extent:
        width = min(lanes, 1 << ((extent - start).bit_length() - 1))
        parts.append(_vector(start, width, body))
        start += width
    return seq(parts)


def _vector(start: int, width: int, body: Body) -> Stmt:
    if width == 1:
        return body(number(start))
    return _loop(width, lambda i: body(i + start if start else i), tirx.ForKind.VECTORIZED)


def when(condition: Expr, stmt: Stmt) -> Stmt:
    """Return ``stmt`` under a condition, or as it is where that is known to hold."""
    known = tvm.sym.Analyzer().simplify(condition)
    if isinstance(known, tirx.IntImm):
        return stmt if int(known) else seq([])
    return tirx.IfThenElse(condition, stmt, None)


def seq(statements: Sequence[Stmt]) -> Stmt:
    """Return statements that follow one another."""
    if len(statements) == 1:
        return statements[0]
    return tirx.SeqStmt(list(statements)) if statements else tirx.Evaluate(number(0))


def _loop(extent: Expr, body: Body, kind: Any) -> Stmt:
    index = tirx.Var("i", "int32")
    return tirx.For(
        index,
        number(0),
        extent if not isinstance(extent, int) else number(extent),
        kind,
        body(index),
    )


def _whole(buffer: Buffer) -> Any:
    ranges = [tvm.ir.Range.from_min_extent(tirx.const(0, "int32"), d) for d in buffer.shape]
    return tvm.tirx.BufferRegion(buffer, ranges)

"""Cut a kernel at the borders of what it joins or pads, so that no element asks where it is.

Concatenating reads one operand below a border and another one above it, and padding
reads none beyond its borders. In one loop nest that is a question for every element, which
keeps a loop from being vectorised where the border lies across it. So each side of a
border becomes a loop nest of its own, in which the answer is known.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from typing import Any

from tvmfuse._tvm import s_tir, tirx, tvm, tvm_ffi
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import blocks

Function = Any  # tirx.PrimFunc
Expr = Any  # tirx.PrimExpr
Stmt = Any  # tirx.Stmt

# Each section is code of its own; beyond this, the borders of the outermost axes stay.
_MAX_SECTIONS = 16
_COMPARISONS = (tirx.LT, tirx.LE, tirx.GT, tirx.GE)
_DIVISIONS = (tirx.FloorDiv, tirx.FloorMod)


def cut(function: Function) -> list[Function]:
    """Return the sections of a kernel as functions of its parameters.

    Parameters
    ----------
    function : tirx.PrimFunc
        Unscheduled S-TIR without reductions, whose results all have one shape.

    Returns
    -------
    list of tirx.PrimFunc
        Together they compute what ``function`` does; just that where nothing is to be cut.
    """
    if not _asks(function):
        return [function]
    sch = s_tir.Schedule(tvm.IRModule({"main": function.with_attr("global_symbol", "main")}))
    try:
        blocks.inline_all(sch)
    except LoweringError:
        return [function]
    body = sch.mod["main"].body.block.body
    nests = list(body.seq) if isinstance(body, tirx.SeqStmt) else [body]
    found = [_block(nest) for nest in nests]
    if any(block is None for block in found):
        return [function]
    sections = _cut(found, _MAX_SECTIONS)
    if len(sections) == 1:
        return [function]
    return [_with_nests(function, [_nest(block) for block in part]) for part in sections]


def _asks(function: Function) -> bool:
    """Whether anything in a kernel depends on where an element is."""
    found: list[Any] = []
    tvm_ffi.structural_walk(function.body, tuple((kind, found.append) for kind in _COMPARISONS))
    return bool(found)


def _block(nest: Stmt) -> Any | None:
    """Return the block of a nest that stores one value of known extents, else None."""
    while isinstance(nest, tirx.For):
        nest = nest.body
    if not isinstance(nest, s_tir.SBlockRealize):
        return None
    block = nest.block
    is_static = all(isinstance(axis.dom.extent, int | tirx.IntImm) for axis in block.iter_vars)
    is_plain = isinstance(block.body, tirx.BufferStore) and block.init is None
    return block if is_static and is_plain and not block.annotations else None


def _cut(found: Sequence[Any], limit: int) -> list[Sequence[Any]]:
    """Cut blocks of one shape until no border is left, or there are enough sections.

    Once one axis is cut, what remains of a condition may be one on another axis: where
    channels lie in blocks, a border within a block is one of the lanes of that block only.
    """
    extents = [int(axis.dom.extent) for axis in found[0].iter_vars]
    borders = sorted({place for block in found for place in _borders(block) if place})
    inside = [(axis, at) for axis, at in borders if 0 < at < extents[axis]]
    if not inside:
        return [found]
    # The innermost axis last: what is known of the outer ones may settle it.
    axis = inside[0][0]
    places = [at for other, at in inside if other == axis]
    if len(places) >= limit:
        return [found]
    parts: list[Sequence[Any]] = []
    for first, end in pairwise((0, *places, extents[axis])):
        section = [_section(block, axis, first, end) for block in found]
        # The parts share what is left of the limit, so that the code of all stays bounded.
        parts += _cut(section, limit // (len(places) + 1))
    return parts


def _borders(block: Any) -> Iterator[tuple[int, int]]:
    """Yield an axis and a place on it, at which an answer in a block changes."""
    analyzer = tvm.sym.Analyzer()
    axes = [axis.var for axis in block.iter_vars]
    for axis in block.iter_vars:
        analyzer.bind(axis.var, axis.dom)
    conditions: list[Expr] = []
    lanes: list[Expr] = []
    value = block.body.value
    tvm_ffi.structural_walk(value, tuple((kind, conditions.append) for kind in _COMPARISONS))
    tvm_ffi.structural_walk(value, tuple((kind, lanes.append) for kind in _DIVISIONS))
    for condition in conditions:
        below = condition.a - condition.b  # what is below zero where the answer is yes
        if isinstance(condition, tirx.GT | tirx.GE):
            below = condition.b - condition.a
        if isinstance(condition, tirx.LE | tirx.GE):
            below = below - 1
        for axis, var in enumerate(axes):
            for place in _sign_changes(below, var, analyzer):
                yield axis, place
    for division in lanes:
        shift = analyzer.simplify(division.a - axes[-1])
        size = analyzer.simplify(division.b)
        is_known = isinstance(shift, tirx.IntImm) and isinstance(size, tirx.IntImm)
        if is_known and int(block.iter_vars[-1].dom.extent) <= int(size):
            yield len(axes) - 1, -int(shift) % int(size)


def _sign_changes(value: Expr, var: Any, analyzer: Any) -> Iterator[int]:
    """Yield from where on ``value`` has another sign, or an open one, as ``var`` grows."""
    at = analyzer.simplify(tvm_ffi.structural_map(value, (tirx.Var, _replacing(var, var + 1))))
    slope = analyzer.simplify(at - value)
    if not isinstance(slope, tirx.IntImm) or int(slope) == 0:
        return
    slope = int(slope)
    rest = analyzer.const_int_bound(analyzer.simplify(value - var * slope))
    low, high = int(rest.min_value), int(rest.max_value)
    if abs(slope) == 1 and low != high:
        return  # it moves with another axis, a diagonal: no cut of one axis settles it
    # A steeper one steps over what the other axis adds, as blocks of channels over their lanes:
    # the answer is open between the places that the two ends of that range give.
    for bound in {low, high}:
        yield -(bound // slope) if slope > 0 else bound // -slope + 1


def _replacing(var: Any, value: Expr) -> Callable[[Any], Any]:
    return lambda other: value if other.same_as(var) else other


def _section(block: Any, axis: int, first: int, end: int) -> Any:
    """Return a block that computes what another one does between two places on an axis."""
    analyzer = tvm.sym.Analyzer()
    axes, places = [], {}
    for i, old in enumerate(block.iter_vars):
        dtype = str(old.var.ty.dtype)
        # New variables: a block is cut into several, and TIR wants each variable bound once.
        var, dom = tirx.Var(str(old.var.name), dtype), old.dom
        places[old.var] = var
        if i == axis:
            dom = tvm.ir.Range.from_min_extent(tirx.const(0, dtype), tirx.const(end - first, dtype))
            places[old.var] = var + tirx.const(first, dtype) if first else var
        analyzer.bind(var, dom)
        axes.append(tirx.IterVar(dom, var, old.iter_type))
    moved = tvm_ffi.structural_map(block.body, (tirx.Var, lambda v: places.get(v, v)), order="post")
    indices = [analyzer.simplify(index) for index in moved.indices]
    body = tirx.BufferStore(moved.buffer, _decided(moved.value, analyzer), indices)
    return s_tir.SBlock(axes, [], [], str(block.name_hint), body)


def _nest(block: Any) -> Stmt:
    """Return a block within loops of its own."""
    axes, body = list(block.iter_vars), block.body
    reads, writes = s_tir.analysis.get_sblock_read_write_region(block, _touched(body))
    made = s_tir.SBlock(axes, reads, writes, str(block.name_hint), body)
    loops = [tirx.Var(f"{axis.var.name}_", str(axis.var.ty.dtype)) for axis in axes]
    nest: Stmt = s_tir.SBlockRealize(loops, tirx.const(1, "bool"), made)
    for axis, loop in zip(reversed(axes), reversed(loops), strict=True):
        nest = tirx.For(loop, axis.dom.min, axis.dom.extent, tirx.ForKind.SERIAL, nest)
    return nest


def _decided(value: Expr, analyzer: Any) -> Expr:
    """Return ``value`` with every choice made whose condition is known."""

    def choice(node: Any) -> Any:
        is_call = isinstance(node, tvm.ir.Call)
        if is_call and str(getattr(node.op, "name", "")) != "prim.if_then_else":
            return node
        if is_call:
            condition, yes, no = node.args
        else:
            condition, yes, no = node.condition, node.true_value, node.false_value
        known = analyzer.simplify(condition)
        if isinstance(known, tirx.IntImm):
            return yes if int(known) else no
        return tirx.if_then_else(known, yes, no) if is_call else tirx.Select(known, yes, no)

    kinds = (tvm.ir.Call, tirx.Select)
    chosen = tvm_ffi.structural_map(value, tuple((kind, choice) for kind in kinds), order="post")
    return analyzer.simplify(chosen)


def _touched(store: Stmt) -> dict[Any, Any]:
    """Return the buffers of a store, each by itself: TVM 0.27 names them by themselves."""
    found = [store.buffer]
    tvm_ffi.structural_walk(
        store.value, (tvm.ir.TensorLoad, lambda load: found.append(load.source))
    )
    return {buffer: buffer for buffer in found}


def _with_nests(function: Function, nests: Sequence[Stmt]) -> Function:
    body = tirx.SeqStmt(list(nests)) if len(nests) > 1 else nests[0]
    root = s_tir.SBlock([], [], [], "root", body)
    realize = s_tir.SBlockRealize([], tirx.const(1, "bool"), root)
    return tirx.PrimFunc(list(function.params), realize, function.ret_type, function.attrs)

"""Rewrites of operators that only move elements: fewer of them, and out of the way."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import constant, is_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow

_PERMUTE, _RESHAPE = "relax.permute_dims", "relax.reshape"
_TO_RESHAPE = ("relax.expand_dims", "relax.squeeze", "relax.flatten")


def reshape_for_views(flow: Dataflow, position: int) -> Any:
    """Rewrite the other views, and transpositions of unit axes, as reshapes."""
    operator, call = flow.operators[position], flow.value(position)
    if operator not in (*_TO_RESHAPE, _PERMUTE):
        return None
    shape = operators.shape(call)
    if shape is None or not all(isinstance(extent, int) for extent in shape):
        return None
    if operator == _PERMUTE and not _moves_unit_axes_only(call):
        return None
    return relax.op.reshape(call.args[0], shape)


def slices_for_split(flow: Dataflow, position: int) -> Any:
    """Rewrite a part of a split as a slice, which what reads it may take in place."""
    value = flow.value(position)
    if not isinstance(value, relax.TupleGetItem):
        return None
    source = flow.position.get(value.tuple_value)
    if source is None or flow.operators[source] != "relax.split":
        return None
    call = flow.value(source)
    shape = operators.shape(call.args[0])
    axis = int(call.attrs.axis)
    sizes = [(operators.extents(field) or {axis: ""})[axis] for field in call.ty.fields]
    known = [size for size in sizes if isinstance(size, int)]
    if shape is None or len(known) < len(sizes):
        return None
    begin, end = sum(known[: value.index]), sum(known[: value.index + 1])
    return relax.op.strided_slice(call.args[0], [axis % len(shape)], [begin], [end])


def merge_moves(flow: Dataflow, position: int) -> Any:
    """Rewrite a reshape of a reshape, or a transposition of a transposition, as one."""
    operator, call = flow.operators[position], flow.value(position)
    source = _source(flow, position, (_RESHAPE, _PERMUTE))
    if source is None or flow.operators[source] != operator:
        return None
    inner = flow.value(source)
    if operator == _RESHAPE:
        return relax.op.reshape(inner.args[0], call.args[1])
    first = _axes(inner)
    return relax.op.permute_dims(inner.args[0], [first[axis] for axis in _axes(call)])


def permute_before_reshape(flow: Dataflow, position: int) -> Any:
    """Rewrite ``permute(reshape(x))`` as ``reshape(permute(x))`` where only unit axes change.

    So two transpositions with a reshape between them meet, and become one.
    """
    if flow.operators[position] != _PERMUTE:
        return None
    source = _source(flow, position, (_RESHAPE,))
    if source is None:
        return None
    operand = flow.value(source).args[0]
    before, after = operators.shape(operand), operators.shape(flow.value(source))
    if before is None or after is None or _wide(before) != _wide(after):
        return None
    # Unit axes may go anywhere: in front is as good as any place.
    kept = [axis for axis, extent in enumerate(before) if extent != 1]
    units = [axis for axis, extent in enumerate(before) if extent == 1]
    rank_of = {axis: i for i, axis in enumerate(a for a, e in enumerate(after) if e != 1)}
    moved = [kept[rank_of[axis]] for axis in _axes(flow.value(position)) if axis in rank_of]
    permuted = relax.op.permute_dims(operand, units + moved)
    return relax.op.reshape(permuted, flow.value(position).ty.shape)


def permute_before_merge(flow: Dataflow, position: int) -> Any:
    """Rewrite ``permute(reshape(x))`` as ``reshape(permute(x))`` where the reshape merges axes.

    Exporters merge batch and heads, transpose, and part them again; only where such a
    reshape follows: then the two reshapes meet, and vanish.
    """
    if flow.operators[position] != _PERMUTE:
        return None
    users = flow.users[position]
    source = _source(flow, position, (_RESHAPE,))
    if source is None or len(users) != 1 or flow.operators[users[0]] != _RESHAPE:
        return None
    operand = flow.value(source).args[0]
    groups = _merged(operators.shape(operand), operators.shape(flow.value(source)))
    if groups is None:
        return None
    axes = [axis for merged in _axes(flow.value(position)) for axis in groups[merged]]
    permuted = relax.op.permute_dims(operand, axes)
    return relax.op.reshape(permuted, flow.value(position).ty.shape)


def _merged(before: Any, after: Any) -> list[list[int]] | None:
    """Return for each axis of a reshaped tensor the axes that were merged into it, or None."""
    if before is None or after is None or len(after) > len(before):
        return None
    if not all(isinstance(extent, int) for extent in (*before, *after)):
        return None
    groups: list[list[int]] = []
    axes = iter(enumerate(before))
    for extent in after:
        group: list[int] = []
        size = 1
        while size < extent or not group:
            axis = next(axes, None)
            if axis is None:
                return None
            group.append(axis[0])
            size *= axis[1]
        if size != extent:
            return None
        groups.append(group)
    return groups if next(axes, None) is None else None


def scale_before_moves(flow: Dataflow, position: int) -> Any:
    """Rewrite ``multiply(move(x), scalar)`` as ``move(multiply(x, scalar))``.

    Only if ``x`` is the product of a constant weight, into which the factor then goes.
    """
    if flow.operators[position] != "relax.multiply":
        return None
    source = _source(flow, position, (_RESHAPE, _PERMUTE))
    scale = flow.value(position).args[1]
    factor = constant(scale)
    if source is None or factor is None or factor.ndim or not _leads_to_weight(flow, source):
        return None
    move = flow.value(source)
    scaled = relax.op.multiply(move.args[0], scale)
    return relax.Call(move.op, [scaled, *move.args[1:]], move.attrs, move.ty_args)


def scale_after_product(flow: Dataflow, position: int) -> Any:
    """Rewrite ``matmul(multiply(x, c), y)`` as ``multiply(matmul(x, y), c)``; ``y`` likewise.

    Attention is written with the scale on the query, on the key, or half on each. Behind
    the product it belongs to the scores, and transposed operands are read where they
    lie. A factor that a constant weight can take stays in front of it. In half precision
    the product may overflow without it.
    """
    if flow.operators[position] != "relax.matmul":
        return None
    call = flow.value(position)
    if operators.dtype(call) != "float32" or any(map(is_constant, call.args)):
        return None
    for i, arg in enumerate(call.args):
        source = flow.private_source(position, arg)
        if source is None or flow.operators[source] != "relax.multiply":
            continue
        operand, factor = flow.value(source).args
        value = constant(factor)
        if value is None or value.ndim or operators.shape(operand) != operators.shape(arg):
            continue
        inner = flow.position.get(operand)
        if inner is not None and _leads_to_weight(flow, inner):
            continue
        args = [operand if j == i else other for j, other in enumerate(call.args)]
        product = relax.Call(call.op, args, call.attrs, call.ty_args)
        return relax.op.multiply(product, factor)
    return None


def _leads_to_weight(flow: Dataflow, position: int) -> bool:
    """Tell whether views, transpositions and offsets lead back to a constant weight."""
    passed = (_RESHAPE, _PERMUTE, "relax.add")
    source: int | None = position
    while source is not None and flow.operators[source] in passed:
        if flow.operators[source] == "relax.add" and not is_constant(flow.value(source).args[1]):
            return False
        source = _source(flow, source, (*passed, "relax.matmul", "relax.nn.conv2d"))
    return source is not None and is_constant(flow.value(source).args[1])


def _source(flow: Dataflow, position: int, operators_: tuple[str, ...]) -> int | None:
    """Return where the first operand comes from, if nobody else reads it there."""
    source = flow.position.get(flow.value(position).args[0]) if flow.operators[position] else None
    if source is None or flow.operators[source] not in operators_:
        return None
    is_sole = source not in flow.escaping and flow.users[source] == (position,)
    return source if is_sole else None


def _moves_unit_axes_only(permute: Any) -> bool:
    shape = operators.shape(permute.args[0]) or ()
    wide = [axis for axis in _axes(permute) if shape[axis] != 1]
    return wide == sorted(wide)


def _wide(shape: tuple[int | str, ...]) -> list[int | str]:
    return [extent for extent in shape if extent != 1]


def _axes(permute: Any) -> list[int]:
    rank = permute.ty.ndim
    axes = permute.attrs.axes
    return list(reversed(range(rank))) if axes is None else [int(axis) % rank for axis in axes]

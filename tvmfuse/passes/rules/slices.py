"""Products that are only ever read in slices: of sliced weights, so that nothing is cut."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.passes.constants import constant, to_constant
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow

_MAX_PARTS = 8
_SLICE, _SPLIT = "relax.strided_slice", "relax.split"


class _Columns(NamedTuple):
    """Neighbouring columns of a value."""

    source: Any
    begin: int
    end: int


def product_of_slices(flow: Dataflow, position: int) -> Any:
    """Rewrite a slice of ``x @ W + b`` along its columns as a product with slices of both.

    GPT-2 projects to Q, K and V at once and splits; a gated layer projects to gate and up.
    Only where every reader takes a slice, so that the whole product is not needed.
    """
    columns = _columns(flow, position)
    if columns is None or not _is_only_sliced(flow, columns.source):
        return None
    links: list[int] = []
    at = flow.position.get(columns.source)
    while at is not None and flow.operators[at] in ("relax.add", "relax.reshape"):
        links.append(at)
        at = flow.private_source(at, flow.value(at).args[0])
    if at is None or flow.operators[at] != "relax.matmul":
        return None
    product = flow.value(at)
    weight = constant(product.args[1])
    if weight is None or weight.ndim != 2 or flow.readers_of_constant[product.args[1]] > 1:
        return None
    part, width = slice(columns.begin, columns.end), weight.shape[1]
    args = [product.args[0], _sliced(weight, part, product.args[1])]
    expr = relax.Call(product.op, args, product.attrs, product.ty_args)
    for link in reversed(links):
        expr = _relinked(flow.value(link), expr, part, width)
        if expr is None:
            return None
    return expr


def _relinked(link: Any, expr: Any, part: slice, width: int) -> Any:
    """Return an offset or a view of the whole product for a part of its columns."""
    shape = operators.shape(link)
    if shape is None or shape[-1] != width:
        return None
    if operators.name(link) == "relax.reshape":
        return relax.op.reshape(expr, (*shape[:-1], part.stop - part.start))
    offset = constant(link.args[1])
    if offset is None or operators.shape(link.args[0]) != shape:
        return None
    if offset.ndim and offset.shape[-1] == width:
        return relax.op.add(expr, _sliced(offset, part, link.args[1]))
    return relax.op.add(expr, link.args[1]) if offset.ndim == 0 else None


def _sliced(array: Any, part: slice, like: Any) -> Any:
    return to_constant(np.ascontiguousarray(array[..., part]), operators.dtype(like))


def _columns(flow: Dataflow, position: int) -> _Columns | None:
    """Return which columns a slice, or a field of a split, takes."""
    value = flow.value(position)
    if flow.operators[position] == _SLICE:
        return _columns_of_slice(value)
    if not isinstance(value, relax.TupleGetItem):
        return None
    split = flow.position.get(value.tuple_value)
    if split is None or not _is_split_of_columns(flow, split):
        return None
    widths = [int(field.shape.values[-1]) for field in value.tuple_value.ty.fields]
    begin = sum(widths[: value.index])
    return _Columns(flow.value(split).args[0], begin, begin + widths[value.index])


def _columns_of_slice(call: Any) -> _Columns | None:
    shape = operators.shape(call.args[0])
    if shape is None or not all(isinstance(extent, int) for extent in shape):
        return None
    axes, begins, ends = ([int(v) for v in arg.fields] for arg in call.args[1:4])
    steps = [int(v) for v in call.args[4].fields] if len(call.args) > 4 else [1]
    last = len(shape) - 1
    if [axis % len(shape) for axis in axes] != [last] or steps != [1]:
        return None
    begin, end, _ = slice(begins[0], ends[0]).indices(int(shape[last]))
    return _Columns(call.args[0], begin, end) if begin < end else None


def _is_only_sliced(flow: Dataflow, source: Any) -> bool:
    """Whether all that reads a value takes some of its columns."""
    position = flow.position.get(source)
    if position is None or position in flow.escaping or len(flow.users[position]) > _MAX_PARTS:
        return False
    for user in flow.users[position]:
        is_slice = flow.operators[user] == _SLICE and _columns_of_slice(flow.value(user))
        if not is_slice and not _is_split_of_columns(flow, user):
            return False
    return True


def _is_split_of_columns(flow: Dataflow, position: int) -> bool:
    """Whether a binding splits the last axis, and is read field by field."""
    if flow.operators[position] != _SPLIT or position in flow.escaping:
        return False
    call = flow.value(position)
    rank = call.args[0].ty.ndim
    fields = call.ty.fields
    return (
        int(call.attrs.axis) % rank == rank - 1
        and len(fields) <= _MAX_PARTS
        and all(isinstance(d, int) for f in fields for d in operators.extents(f) or ("?",))
        and all(isinstance(flow.value(u), relax.TupleGetItem) for u in flow.users[position])
    )

"""How an epilogue reads a product: its loops, in the order of the product's axes."""

from __future__ import annotations

from collections.abc import Container, Mapping, Sequence
from typing import Any

from tvmfuse._tvm import tirx, tvm, tvm_ffi
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import blocks
from tvmfuse.kernels.blocks import Block, Loop, Schedule


def loops_as_read(sch: Schedule, block: Block, source: Block) -> list[Loop]:
    """Return the loops of ``block`` in the order of the axes of ``source`` that it reads.

    So a result that is stored transposed is still computed in tiles of the product. Axes
    that drive one axis together (batch and row) become one. An axis that is read at one
    place only has no loop, and is left out.

    Raises
    ------
    LoweringError
        It does not read one element of ``source`` for each of its own.
    """
    (written,) = sch.get(source).writes
    statement, realized = sch.get(block), blocks.realize(sch, block)
    loops = {sch.get(loop).loop_var: loop for loop in sch.get_loops(block)}
    by_axis = {
        axis.var: loops[value]
        for axis, value in zip(statement.iter_vars, realized.iter_values, strict=True)
        if isinstance(value, tirx.Var) and value in loops
    }
    for region in statement.reads:
        if region.source.same_as(written.source):
            driven = [_driving(part.min, list(by_axis)) for part in region.region]
            parts = _with_single(driven, _unread(statement, driven, by_axis))
            if sum(len(part) for part in parts) == len(loops):
                if len(parts) == len(loops):
                    return [by_axis[var] for (var,) in parts]
                return _with_axes(sch, block, parts)
    raise LoweringError("the epilogue does not read the product element by element")


def _unread(statement: Any, driven: Sequence[Sequence[Any]], known: Container[Any]) -> list[Any]:
    """Return the known axes of one element that drive no index: TVM reads the first there."""
    read = [var for part in driven for var in part]
    single = [axis.var for axis in statement.iter_vars if int(axis.dom.extent) == 1]
    return [a for a in single if a in known and not any(a.same_as(var) for var in read)]


def _with_single(driven: Sequence[Sequence[Any]], single: Sequence[Any]) -> list[list[Any]]:
    """Give indices that nothing drives an axis of one element each, and the rest to the first."""
    left = list(single)
    parts = []
    for part in driven:
        if part:
            parts.append(list(part))
        elif left:
            parts.append([left.pop(0)])
    if parts:
        parts[0] = [*left, *parts[0]]
    return parts


def _driving(index: Any, axes: Sequence[Any]) -> list[Any]:
    """Return the axes that drive an index, the one of the largest stride first."""
    if isinstance(index, tirx.Var):
        return [axis for axis in axes if axis.same_as(index)]
    found: list[Any] = []
    tvm_ffi.structural_walk(index, (tirx.Var, found.append))
    variables = [axis for axis in axes if any(axis.same_as(var) for var in found)]
    strides = tvm.sym.detect_linear_equation(index, variables) if variables else []
    if len(strides) != len(variables) + 1:
        return []
    by_stride = sorted(zip(strides, variables, strict=False), key=lambda pair: -int(pair[0]))
    return [var for _, var in by_stride]


def _with_axes(sch: Schedule, block: Block, parts: Sequence[Sequence[Any]]) -> list[Loop]:
    """Give ``block`` one axis for each of ``parts``, which holds old axes, outermost first."""
    axes = [axis.var for axis in blocks.iter_vars(sch, block)]
    sizes = {axis.var: axis.dom.extent for axis in blocks.iter_vars(sch, block)}
    if sum(len(part) for part in parts) != len(axes):
        raise LoweringError("an axis of the epilogue has no part in the product")

    def joined(part: Sequence[Any], given: Mapping[Any, Any]) -> Any:
        index = given[part[0]]
        for axis in part[1:]:
            index = index * sizes[axis] + given[axis]
        return index

    def index_map(*index: Any) -> list[Any]:
        given = dict(zip(axes, index, strict=True))
        return [joined(part, given) for part in parts]

    # An extent of another type than the axes would bring in casts, which TVM cannot invert.
    dtype = str(axes[0].ty.dtype)
    as_map = tirx.IndexMap.from_func(index_map, ndim=len(axes), index_dtype=dtype)
    sch.transform_block_layout(block, as_map)
    return list(sch.get_loops(block))

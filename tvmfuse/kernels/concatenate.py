"""Concatenation of equal parts along the last axis, without a branch for each element.

TVM 0.27 asks for each element which part it is of, by a branch that keeps vectors from
being formed. Where the parts are equally long, each can be read at the same place, and
one of them chosen: the halves of a rotary embedding, the columns of a stack.
"""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import relax, te, tirx

_MAX_PARTS = 4  # each is read for every element

Builder = Any  # relax.BlockBuilder
Call = Any  # relax.Call
Tensor = Any  # te.Tensor


def legalize(builder: Builder, call: Call) -> Any:
    """Concatenate a few equal parts; leave others to TVM."""
    parts = call.args[0]
    if not isinstance(parts, relax.Tuple) or not _is_covered(call, list(parts.fields)):
        return call.op.get_attr("FLegalize")(builder, call)
    length = int(parts.fields[0].ty.shape[-1])

    def emit(*tensors: Tensor) -> Tensor:
        def value(*index: Any) -> Any:
            *lead, last = index
            chosen = tensors[-1][(*lead, last % length)]
            for number in reversed(range(len(tensors) - 1)):
                part = tensors[number][(*lead, last % length)]
                is_before = last < (number + 1) * length
                chosen = tirx.Select(is_before, part, chosen)
            return chosen

        return te.compute(list(call.ty.shape), value, name="concat")

    return builder.call_te(emit, *parts.fields, primfunc_name_hint="concat")


def _is_covered(call: Call, parts: list[Any]) -> bool:
    shapes = [part.ty.shape for part in parts]
    if not 1 < len(parts) <= _MAX_PARTS or any(shape is None for shape in shapes):
        return False
    rank = len(shapes[0])
    lengths = {shape[-1] for shape in shapes if rank}
    is_static = all(isinstance(length, int | tirx.IntImm) for length in lengths)
    is_last = rank > 0 and int(call.attrs.axis or 0) % rank == rank - 1
    return is_last and is_static and len({int(length) for length in lengths}) == 1

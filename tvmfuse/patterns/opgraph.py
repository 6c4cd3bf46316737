"""Describe a set of bindings as plain data, for the cost model."""

from __future__ import annotations

from collections.abc import Hashable, Iterable
from dataclasses import dataclass
from functools import cache
from typing import Any

from tvmfuse._tvm import relax, tvm
from tvmfuse.patterns import operators
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.plan import OpGraph, OpKind, OpNode, TensorInfo

_GATHERS = ("relax.gather_elements", "relax.take")
_Tensor = tuple[Hashable, TensorInfo]


@dataclass(frozen=True)
class _Described:
    """One binding as plain data, its tensors named by what they are bound to."""

    name: str
    kind: OpKind
    flops: int
    inputs: tuple[_Tensor, ...]
    outputs: tuple[_Tensor, ...]


class Describer:
    """Turn sets of bindings of one function into :class:`~tvmfuse.plan.OpGraph` values."""

    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        # Candidates overlap, so each binding is described once.
        self._described = cache(self._describe)

    def n_bytes(self, position: int) -> int:
        """Return the size of what a binding makes; 0 for a view of another's memory."""
        made = self._described(position)
        return 0 if made.kind == "view" else sum(info.n_bytes for _, info in made.outputs)

    def graph(self, members: Iterable[int], *, without: Iterable[int] = ()) -> OpGraph:
        """Return the operators of ``members`` and the tensors between them.

        Parameters
        ----------
        members : Iterable of int
            Positions in the function.
        without : Iterable of int
            Those whose values do not leave, though others read them.
        """
        positions = sorted(members)
        index: dict[Hashable, int] = {}
        tensors: list[TensorInfo] = []

        def number(items: Iterable[_Tensor]) -> tuple[int, ...]:
            for key, info in items:
                if index.setdefault(key, len(tensors)) == len(tensors):
                    tensors.append(info)
            return tuple(index[key] for key, _ in items)

        ops = []
        for position in positions:
            op = self._described(position)
            ops.append(
                OpNode(
                    name=op.name,
                    kind=op.kind,
                    inputs=number(op.inputs),
                    outputs=number(op.outputs),
                    flops=op.flops,
                    binding=position,
                    label=self._flow.labels[position],
                )
            )
        made = {tensor for op in ops for tensor in op.outputs}
        read = {tensor for op in ops for tensor in op.inputs}
        outputs = set(self._flow.outputs(positions)) - set(without)
        leaving = {t for i in sorted(outputs) for t in number(self._made(i))}
        return OpGraph(
            tensors=tuple(tensors),
            ops=tuple(ops),
            inputs=tuple(sorted(read - made)),
            outputs=tuple(sorted(leaving)),
        )

    def _made(self, position: int) -> tuple[_Tensor, ...]:
        return self._described(position).outputs

    def _describe(self, position: int) -> _Described:
        value = self._flow.value(position)
        var = self._flow.var(position)
        if isinstance(value, relax.TupleGetItem):
            return _Described(
                name="",
                kind="view",
                flops=0,
                inputs=tuple(_leaves((value.tuple_value, value.index), value.ty)),
                outputs=tuple(_fields(var)),
            )
        if not operators.name(value):
            read = _fields(value) if isinstance(value, relax.Var | relax.Tuple) else []
            return _Described("", "opaque", 0, tuple(read), tuple(_fields(var)))
        return _Described(
            name=operators.name(value),
            kind=operators.kind(value),
            flops=operators.flops(value),
            inputs=tuple(t for arg in value.args for t in _read_by(value, arg)),
            outputs=tuple(_fields(var)),
        )


def _read_by(call: Any, arg: Any) -> list[_Tensor]:
    """Return what a call reads of an argument: of a table, what it gathers."""
    fields = _fields(arg)
    if operators.name(call) not in _GATHERS or not isinstance(arg, tvm.ir.GenericConst):
        return fields
    read = TensorInfo(operators.shape(call) or (), operators.dtype(arg), is_constant=True)
    is_less = arg.same_as(call.args[0]) and read.size < fields[0][1].size
    return [((arg, call), read)] if is_less else fields


def _fields(expr: Any) -> list[_Tensor]:
    """Return the tensors that an expression stands for, each with a key."""
    if isinstance(expr, relax.Tuple):
        return [tensor for field in expr.fields for tensor in _fields(field)]
    if isinstance(expr.ty, relax.TensorType):
        return [(expr, _info(expr.ty, is_constant=isinstance(expr, tvm.ir.GenericConst)))]
    return _leaves(expr, expr.ty)


def _leaves(key: Hashable, ty: Any) -> list[_Tensor]:
    """Return the tensors of a value that is no constant, those inside tuples too."""
    if isinstance(ty, relax.TupleType):
        return [leaf for i, field in enumerate(ty.fields) for leaf in _leaves((key, i), field)]
    return [(key, _info(ty, is_constant=False))] if isinstance(ty, relax.TensorType) else []


def _info(ty: Any, *, is_constant: bool) -> TensorInfo:
    return TensorInfo(
        shape=operators.extents(ty) or (), dtype=str(ty.dtype), is_constant=is_constant
    )

"""Replace the operators of an attention group by the attention kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse._tvm import tirx
from tvmfuse.kernels import attention as kernel
from tvmfuse.kernels.attention_parts import Attention as Spec
from tvmfuse.passes.layout.forms import PLAIN, Form
from tvmfuse.passes.layout.rewrite import Expr, NotRewritable, Rewriter, Var, shape_of
from tvmfuse.patterns.attention_parts import Attention, View, read
from tvmfuse.patterns.dataflow import Dataflow

_RANK = 4  # of what the kernel sees: batch, head, row, column
_STEPS: dict[str, Callable[[Any, Any], Any]] = {
    "relax.add": lambda a, b: a + b,
    "relax.divide": lambda a, b: a / b,
    "relax.multiply": lambda a, b: a * b,
    "relax.subtract": lambda a, b: a - b,
}


def attention(rewriter: Rewriter) -> tuple[Expr, Form]:
    """Return a call of the attention kernel for a whole group.

    Raises
    ------
    NotRewritable
        The group is no attention.
    """
    flow = Dataflow.of("group", rewriter.function)
    softmax = next((i for i, op in enumerate(flow.operators) if op == "relax.nn.softmax"), None)
    found = None if softmax is None else read(flow, softmax, are_numbers_known=False)
    if found is None or len(found.members) != len(flow.bindings):
        raise NotRewritable("the group holds more than attention")
    params = list(rewriter.function.params)

    def describe(*tensors: Any) -> Spec:
        return _spec(flow, found, dict(zip(params, tensors, strict=True)))

    def emit(*tensors: Any) -> Any:
        lead = _RANK - len(found.order)
        order = (*range(lead), *(axis + lead for axis in found.order))
        rank = len(found.order)
        return kernel.emit(describe, tensors, rewriter.machine, order=order, rank=rank)

    args = [rewriter.take(param, PLAIN) for param in params]
    return rewriter.kernel(emit, *args, name="attention"), PLAIN


def _spec(flow: Dataflow, found: Attention, operands: dict[Var, Any]) -> Spec:
    heads = [1] * (_RANK - len(found.order))
    *lead, queries, depth = heads + _extents(found.query)
    *_, keys = _extents(found.key)
    *_, width = _extents(found.value)
    batch, n_heads = lead

    def at(view: View) -> Callable[..., Any]:
        tensor = operands[view.value]
        return lambda *index: tensor[_source(view.axes, index)]

    key, value = at(found.key), at(found.value)
    return Spec(
        batch=batch,
        heads=n_heads,
        queries=queries,
        keys=keys,
        depth=depth,
        width=width,
        query=at(found.query),
        key=lambda b, h, j, d: key(b, h, d, j),
        value=value,
        score=_score(flow, found, operands),
        key_heads=n_heads // found.group,
        zero_masked_rows=found.zero_masked_rows,
    )


def _extents(view: View) -> list[int]:
    shape = shape_of(view.value)
    return [shape[axis] for axis in view.axes]


def _source(axes: Sequence[int], index: Sequence[Any]) -> tuple[Any, ...]:
    """Return the indices of a value that is read with its axes in another order."""
    place: dict[int, Any] = dict(zip(axes, index[-len(axes) :], strict=True))
    return tuple(place[axis] for axis in range(len(axes)))


def _score(flow: Dataflow, found: Attention, operands: dict[Var, Any]) -> Callable[..., Any]:
    def score(product: Any, *index: Any) -> Any:
        last = flow.var(_product(flow, found))
        for step in found.steps:
            call = flow.value(step)
            values = [
                product if arg.same_as(last) else _broadcast(operands[arg], index)
                for arg in call.args
            ]
            name = flow.operators[step]
            product = tirx.Select(*values) if name == "relax.where" else _STEPS[name](*values)
            last = flow.var(step)
        return product

    return score


def _product(flow: Dataflow, found: Attention) -> int:
    return min(i for i in found.members if flow.operators[i] == "relax.matmul")


def _broadcast(tensor: Any, index: Sequence[Any]) -> Any:
    shape = [int(d) for d in tensor.shape]
    place = index[len(index) - len(shape) :]
    return tensor[tuple(0 if d == 1 else i for d, i in zip(shape, place, strict=True))]

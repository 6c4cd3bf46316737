"""What an attention computes, kept within its kernel until that is scheduled.

What it reads are expressions of the graph around it: scales, casts, masks. They stand at
the beginning of a task, in loops of one step that name their indices, where a schedule
finds them and writes the kernel anew, in other tiles.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tvmfuse._tvm import tirx, tvm, tvm_ffi
from tvmfuse.kernels import statements as st
from tvmfuse.kernels.attention_parts import Attention
from tvmfuse.kernels.statements import Buffer, Expr, Stmt

_INDICES = 4  # of each part: batch, head, and two more
_EXTENTS = ("batch", "heads", "queries", "keys", "depth", "width")


def about(a: Attention) -> dict[str, Any]:
    """Return what of an attention are numbers."""
    return {
        "extents": [int(getattr(a, name)) for name in _EXTENTS],
        "key_heads": int(a.key_heads),
        "causal": [] if a.causal is None else [int(a.causal)],
        "zero_masked_rows": int(a.zero_masked_rows),
    }


def kept(a: Attention) -> Stmt:
    """Return statements that hold what of an attention are expressions."""
    element, product = (st.scratch((1,), name) for name in ("element", "product"))

    def named(part: Callable[..., Expr]) -> Stmt:
        def nest(*index: Expr) -> Stmt:
            if len(index) < _INDICES:
                return st.loop(1, lambda i: nest(*index, i))
            return st.store(element, part(*index), st.number(0))

        return nest()

    parts = [a.query, a.key, a.value, lambda *index: a.score(product[0], *index)]
    return st.holding([element, product], st.seq([named(part) for part in parts]))


def read(statement: Stmt, numbers: Mapping[str, Any]) -> Attention:
    """Return the attention of which :func:`kept` and :func:`about` gave the parts."""
    block = statement.block
    product = block.alloc_buffers[1]
    query, key, value, score = (_function(part, product) for part in block.body.seq)
    causal = [int(n) for n in numbers["causal"]]
    extents = dict(zip(_EXTENTS, map(int, numbers["extents"]), strict=True))
    return Attention(
        **extents,
        query=query,
        key=key,
        value=value,
        score=lambda x, *index: score(*index, product=x),
        key_heads=int(numbers["key_heads"]),
        causal=causal[0] if causal else None,
        zero_masked_rows=bool(int(numbers["zero_masked_rows"])),
    )


def _function(nest: Stmt, product: Buffer) -> Callable[..., Expr]:
    """Return the element that a nest stores, as a function of its indices."""
    variables = []
    while isinstance(nest, tirx.For):
        variables.append(nest.loop_var)
        nest = nest.body
    value = nest.value
    names: list[Any] = []
    tvm_ffi.structural_walk(value, (tirx.Let, lambda let: names.append(let.var)))

    def element(*index: Expr, **given: Expr) -> Expr:
        places = dict(zip(variables, index, strict=True))
        # Each use has names of its own: TVM refuses one that is bound twice.
        places.update((name, tirx.Var(str(name.name), name.ty)) for name in names)

        # One map after the other: together they free what TVM 0.27 still uses.
        moved = tvm_ffi.structural_map(value, (tirx.Var, lambda v: places.get(v, v)), order="post")
        if not given:
            return moved

        def load(found: Any) -> Any:
            return given["product"] if found.source.same_as(product) else found

        return tvm_ffi.structural_map(moved, (tvm.ir.TensorLoad, load), order="post")

    return element

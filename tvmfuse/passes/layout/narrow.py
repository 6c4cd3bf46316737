"""How a product takes in a weight of small integers in groups, which it dequantises itself."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from tvmfuse.kernels.gemm import narrow
from tvmfuse.kernels.tiling import gemm_tile
from tvmfuse.passes.layout.forms import PLAIN
from tvmfuse.passes.layout.integer_forms import GroupRows, NarrowPanels
from tvmfuse.passes.layout.rewrite import Expr, NotRewritable, Rewriter, dtypes, operator, shape_of
from tvmfuse.patterns.narrow_matmul import CHAIN, OPTIONAL, bits_of

Stored = tuple[Any, Any, Any]  # integers, scale and offset, which may be None


def stored_weights(function: Any) -> tuple[Mapping[Any, Stored], frozenset[Any]]:
    """Return what the products of a group take in as it is stored, by its variable.

    Also all variables that lead there, which need no form of their own.
    """
    bindings = function.body.blocks[0].bindings
    made = {binding.var: binding.value for binding in bindings}
    stored: dict[Any, Stored] = {}
    passed: set[Any] = set()
    for call in made.values():
        if operator(call) != "relax.matmul":
            continue
        parts: dict[str, Any] = {}
        chain, expr = [], call.args[1]
        for wanted in CHAIN:
            step = made.get(expr)
            found = "" if step is None else operator(step)
            if found != wanted and wanted == OPTIONAL:
                continue
            if step is None or found != wanted:
                break
            chain.append(expr)
            parts[wanted] = step.args[-1]
            expr = step.args[0]
        else:
            stored[call.args[1]] = (expr, parts["relax.multiply"], parts.get("relax.add"))
            passed.update(chain)
    return stored, frozenset(passed)


def narrow_matmul(rewriter: Rewriter, x: Expr, weight: Stored) -> Expr:
    """Multiply rows by a weight that stays as it is stored."""
    values, *affine = (part for part in weight if part is not None)
    if not all(rewriter.is_constant(part) for part in (values, *affine)) or dtypes([x]) != {
        "float32"
    }:
        raise NotRewritable("a stored weight needs float32 rows and must be a constant")
    machine, rows, n = rewriter.machine, math.prod(shape_of(x)[:-1]), shape_of(values)[-1]
    if narrow.is_few(rows, machine):
        columns = narrow.columns_for(rows, machine)
    else:
        columns = gemm_tile(rows, n, machine).columns
    dtype = str(values.ty.dtype)
    stored = narrow.Narrow(bits_of(dtype), columns)
    args = [rewriter.take(x, PLAIN), rewriter.take(values, NarrowPanels(stored, dtype))]
    args += [rewriter.take(part, GroupRows(columns)) for part in affine]

    def emit(a: Any, q: Any, scale: Any, offset: Any = None) -> Any:
        return narrow.emit_narrow(a, (q, scale, offset), n, stored, machine)

    return rewriter.kernel(emit, *args, name="matmul")

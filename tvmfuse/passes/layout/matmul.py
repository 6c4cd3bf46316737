"""How a matrix product works on a packed constant weight."""

from __future__ import annotations

import math
from typing import Any

from tvmfuse.kernels import gemm, reduction
from tvmfuse.kernels.gemm import direct, integer
from tvmfuse.kernels.half import FLOATS
from tvmfuse.kernels.tiling import gemm_tile
from tvmfuse.passes.layout.forms import PLAIN, Form, Panels
from tvmfuse.passes.layout.integer_forms import ColumnSums, IntegerPanels
from tvmfuse.passes.layout.narrow import narrow_matmul
from tvmfuse.passes.layout.rewrite import (
    Expr,
    NotRewritable,
    Rewriter,
    Var,
    dtypes,
    operator,
    shape_of,
)

_BYTES = {"int8", "uint8"}
_INTEGERS = {"int8", "int16"}
_MATRIX_RANK = 2


def matmul(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Multiply by a packed constant weight."""
    x, weight = call.args
    stored = rewriter.stored_weights.get(weight)
    if stored is not None:
        return narrow_matmul(rewriter, x, stored), PLAIN
    if not rewriter.is_constant(weight):
        return _few_rows(rewriter, x, weight, var), PLAIN
    rows, shape = shape_of(x), shape_of(weight)
    if len(rows) < 2 or len(shape) < 2 or math.prod(shape[:-2]) != 1 or 0 in (*rows, *shape):
        raise NotRewritable("packing needs one weight matrix and rows to multiply by it")
    if len(shape_of(var)) != len(rows):
        raise NotRewritable("the weight's leading ones widen the result")
    norm = rewriter.prologue(x)
    if norm is not None and dtypes([x, weight, var]) <= {"float32", "int8"}:
        return _normalised(rewriter, norm, weight), PLAIN
    if norm is not None:
        raise NotRewritable("a norm in a product needs float32 rows")
    if dtypes([x, var]) <= set(FLOATS) and dtypes([weight]) <= {*FLOATS, "int8"}:
        return _floats(rewriter, x, weight, var), PLAIN
    if dtypes([x]) <= _BYTES and dtypes([weight]) <= _INTEGERS and dtypes([var]) == {"int32"}:
        return _integers(rewriter, x, weight), PLAIN
    raise NotRewritable("packing needs floats, or 8-bit rows whose sums are int32")


def _floats(rewriter: Rewriter, x: Expr, weight: Expr, var: Var) -> Expr:
    machine, n, dtype = rewriter.machine, shape_of(weight)[-1], str(var.ty.dtype)
    tile = gemm_tile(math.prod(shape_of(x)[:-1]), n, machine)
    args = [rewriter.take(x, PLAIN), rewriter.take(weight, Panels(tile.columns))]

    def emit(a: Any, b: Any) -> Any:
        return gemm.emit_packed(a, b, n, machine, out_dtype=dtype)

    return rewriter.kernel(emit, *args, name="matmul")


def _few_rows(rewriter: Rewriter, x: Expr, weight: Expr, var: Var) -> Expr:
    """Multiply a few rows by a weight that is known only at run time, read as it lies."""
    source = rewriter.definition(weight)
    is_turned = operator(source) == "relax.permute_dims"
    stored = source.args[0] if is_turned else weight
    if dtypes([x, stored, var]) - set(FLOATS) or len(shape_of(stored)) != _MATRIX_RANK:
        raise NotRewritable("only a matrix of floats is read as it lies")
    rows, (k, n) = math.prod(shape_of(x)[:-1]), shape_of(weight)
    machine, dtype = rewriter.machine, str(var.ty.dtype)
    if 0 in (rows, k, n) or not direct.fits(rows, n, k, machine, transposed=is_turned):
        raise NotRewritable("a product of many rows packs the weight by itself")
    if len(shape_of(x)) < _MATRIX_RANK:
        raise NotRewritable("a vector stays plain")
    args = [rewriter.take(x, PLAIN), rewriter.take(stored, PLAIN)]

    def emit(a: Any, b: Any) -> Any:
        return direct.emit(a, b, machine, transposed=is_turned, dtype=dtype)

    return rewriter.kernel(emit, *args, name="matmul")


def _normalised(rewriter: Rewriter, norm: Any, weight: Expr) -> Expr:
    """Multiply rows that each task normalises first."""
    machine, n, lead = rewriter.machine, shape_of(weight)[-1], shape_of(norm)[:-1]
    columns = gemm_tile(math.prod(lead), n, machine).columns
    rows = gemm.rows_for(math.prod(lead), columns, machine)
    parameters = [rewriter.take(parameter, PLAIN) for parameter in norm.args[1:]]
    args = [rewriter.take(norm.args[0], PLAIN), *parameters]
    args.append(rewriter.take(weight, Panels(columns)))

    def emit(x: Any, gamma: Any, *others: Any) -> Any:
        *beta, panels = others
        normal = reduction.normalize(
            gemm.whole_tiles(gemm.flattened(x), rows),
            (1,),
            machine.lanes,
            epsilon=float(norm.attrs.epsilon),
            centered=bool(beta),
            affine=lambda y, i: y * gamma[i[1]] + (beta[0][i[1]] if beta else 0),
        )
        taken = gemm.prepared(normal, lambda *i: normal[i], rows)
        return gemm.emit_packed(taken, panels, n, machine, lead=lead)

    return rewriter.kernel(emit, *args, name="norm_matmul")


def _integers(rewriter: Rewriter, x: Expr, weight: Expr) -> Expr:
    machine, n = rewriter.machine, shape_of(weight)[-1]
    chosen = integer.plan(str(x.ty.dtype), str(weight.ty.dtype), machine)
    tile = integer.tile(math.prod(shape_of(x)[:-1]), n, chosen, machine)
    form = IntegerPanels(tile.columns, chosen)
    args = [rewriter.take(x, PLAIN), rewriter.take(weight, form)]
    if chosen.shift:
        args.append(rewriter.take(weight, ColumnSums()))

    def emit(a: Any, b: Any, sums: Any = None) -> Any:
        return integer.emit_integers(a, b, sums, n, chosen, machine)

    return rewriter.kernel(emit, *args, name="matmul")

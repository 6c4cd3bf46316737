"""How the operators of a group of two anchors work: the second reads a stage of the first."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvmfuse.kernels import chained, chained_rows, gemm, window
from tvmfuse.kernels import conv as conv_kernel
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import Machine, gemm_tile
from tvmfuse.passes.layout.convolution import Way, call_of, float_ways
from tvmfuse.passes.layout.forms import PLAIN, Form, Panels
from tvmfuse.passes.layout.geometry import blocked_form, kernel, window_of
from tvmfuse.passes.layout.pooling import pooling_kernel, pooling_window
from tvmfuse.passes.layout.rewrite import (
    Expr,
    NotRewritable,
    Rewriter,
    Rule,
    Var,
    operator,
    shape_of,
)


def conv(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Convolve: as the first of two for the rows that the second reads, else from the stage."""
    blocked = blocked_form(rewriter, var)
    if not rewriter.is_constant(call.args[1]):
        raise NotRewritable("a chain needs constant weights")
    ways = float_ways(rewriter, call, var)
    is_second = rewriter.form_of(call.args[0]) is not None
    way = _from_stage(rewriter, call, ways) if is_second else _for_stage(rewriter, ways, var)
    return call_of(rewriter, call, way), blocked


def pool(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Pool the stage."""
    blocked, geometry = blocked_form(rewriter, var), _window(call, var)
    if operator(call) in _WINDOWS:
        return pooling_kernel(rewriter, call, geometry, pad=chained.padded), blocked
    args = [rewriter.take(call.args[0], blocked)]
    more = {"count_padding": False, "pad": chained.padded}
    return kernel(rewriter, args, window.emit_mean, geometry, name="avg_pool", **more), blocked


def matmul(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Multiply: as the first of two for the rows that the second reads, else from the stage."""
    machine, (x, weight), n = rewriter.machine, call.args, shape_of(var)[-1]
    bindings = rewriter.function.body.blocks[0].bindings
    products = [i for i, b in enumerate(bindings) if operator(b.value) == "relax.matmul"]
    if len(products) != 2 or not rewriter.is_constant(weight):
        raise NotRewritable("a chain of products needs two of them, by constant weights")
    first, second = products
    between = bindings[first + 1 : second]
    m, hidden = math.prod(shape_of(bindings[first].var)[:-1]), shape_of(bindings[first].var)[-1]
    widths = [shape_of(bindings[i].var)[-1] for i in (first, second)]
    columns = [gemm_tile(m, width, machine).columns for width in widths]
    rows = chained_rows.rows_for(m, hidden, columns, machine)
    if 4 * rows * hidden > machine.l2_bytes // 2:
        raise NotRewritable(f"a few rows of {hidden} elements do not fit the second-level cache")
    operands = [arg for b in between for arg in b.value.args if _is_outside(arg, rewriter)]
    if m % rows and any(math.prod(shape_of(arg)[:-1]) > 1 for arg in operands):
        raise NotRewritable(f"a tensor is added that has no whole tiles of {rows} rows")
    is_second = call.same_as(bindings[second].value)
    args = [rewriter.take(x, PLAIN), rewriter.take(weight, Panels(columns[is_second]))]

    def emit(a: Any, b: Any) -> Any:
        if is_second:
            return chained.emit_product(a, b, n, machine, rows=rows)
        return gemm.emit_packed(a, b, n, machine, rows=rows)

    return rewriter.kernel(emit, *args, name="matmul"), PLAIN


_WINDOWS = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d")

CHAINED_RULES: Mapping[str, Rule] = {
    "relax.matmul": matmul,
    "relax.nn.conv2d": conv,
    "relax.nn.adaptive_avg_pool2d": pool,
    "relax.mean": pool,
    **dict.fromkeys(_WINDOWS, pool),
}


def _for_stage(rewriter: Rewriter, ways: Sequence[Way], var: Var) -> Way:
    """Return how the first of two convolves."""
    if _is_depthwise(ways[0]):
        return ways[0]
    direct = [way for way in ways if way.emit is conv_kernel.emit]
    if not direct:
        raise NotRewritable("the first convolution of a chain must be direct or depthwise")
    bindings = rewriter.function.body.blocks[0].bindings
    second = [b for b in bindings if operator(b.value) in CHAINED_RULES][-1]
    margin = chained.margin(_window(second.value, second.var), shape_of(var)[2])
    between = bindings[1 : bindings.index(second)]
    images = [p for b in between for p in b.value.args if _has_rows(p, rewriter)]
    if any(margin) and images:
        raise NotRewritable("an image is added that has no rows above and below, as the stage has")
    return replace(direct[0], more={**direct[0].more, "margin": margin})


def _is_outside(operand: Any, rewriter: Rewriter) -> bool:
    return any(operand.same_as(param) for param in rewriter.function.params)


def _has_rows(operand: Any, rewriter: Rewriter) -> bool:
    """Whether an operand comes from outside the group, and is an image of several rows."""
    return (
        _is_outside(operand, rewriter) and len(shape_of(operand)) > 2 and shape_of(operand)[-2] > 1
    )


def _from_stage(rewriter: Rewriter, call: Any, ways: Sequence[Way]) -> Way:
    """Return how the second of two convolves, or the only one, behind what it reads."""
    geometry = window_of(call.attrs, shape_of(call.args[1])[2:])
    if not geometry.is_pointwise or int(call.attrs.groups) != 1:
        raise NotRewritable("the second convolution of a chain must be 1 x 1")
    bindings = rewriter.function.body.blocks[0].bindings
    convs = [b for b in bindings if operator(b.value) == operator(call)]
    return replace(ways[0], emit=_pointwise if len(convs) > 1 else _pixels)


def _pointwise(x: Any, weight: Any, _geometry: Window, machine: Machine) -> Any:
    return chained.emit_pointwise(x, weight, machine)


def _pixels(x: Any, weight: Any, _geometry: Window, machine: Machine) -> Any:
    return chained.emit_pixels(x, weight, machine)


def _is_depthwise(way: Way) -> bool:
    return way.emit is window.emit_depthwise


def _window(call: Any, var: Var) -> Window:
    """Return the window through which the second anchor reads the stage."""
    if operator(call) in _WINDOWS:
        return pooling_window(call, var)
    _, _, height, width = shape_of(call.args[0])
    if shape_of(var)[2:] != (1, 1):
        raise NotRewritable("only the mean of a whole image is taken of a stage")
    return Window((height, width))

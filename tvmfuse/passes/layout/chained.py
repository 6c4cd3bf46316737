"""How the operators of a group of two anchors work: the second reads a stage of the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from tvmfuse.kernels import chained, window
from tvmfuse.kernels import conv as conv_kernel
from tvmfuse.kernels.conv import Window
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.convolution import Way, call_of, float_ways
from tvmfuse.passes.layout.forms import Form
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
    way = _from_stage(call, ways) if is_second else _for_stage(rewriter, ways, var)
    return call_of(rewriter, call, way), blocked


def pool(rewriter: Rewriter, call: Any, var: Var) -> tuple[Expr, Form]:
    """Pool the stage."""
    blocked, geometry = blocked_form(rewriter, var), _window(call, var)
    if operator(call) in _WINDOWS:
        return pooling_kernel(rewriter, call, geometry, pad=chained.padded), blocked
    args = [rewriter.take(call.args[0], blocked)]
    more = {"count_padding": False, "pad": chained.padded}
    return kernel(rewriter, args, window.emit_mean, geometry, name="avg_pool", **more), blocked


_WINDOWS = ("relax.nn.max_pool2d", "relax.nn.avg_pool2d")

CHAINED_RULES: Mapping[str, Rule] = {
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


def _has_rows(operand: Any, rewriter: Rewriter) -> bool:
    """Whether an operand comes from outside the group, and is an image of several rows."""
    is_outside = any(operand.same_as(param) for param in rewriter.function.params)
    return is_outside and len(shape_of(operand)) > 2 and shape_of(operand)[-2] > 1


def _from_stage(call: Any, ways: Sequence[Way]) -> Way:
    """Return how the second of two convolves."""
    geometry = window_of(call.attrs, shape_of(call.args[1])[2:])
    if not geometry.is_pointwise or int(call.attrs.groups) != 1:
        raise NotRewritable("the second convolution of a chain must be 1 x 1")
    return replace(ways[0], emit=_pointwise)


def _pointwise(x: Any, weight: Any, _geometry: Window, machine: Machine) -> Any:
    return chained.emit_pointwise(x, weight, machine)


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

"""How pooling works on channel-blocked tensors."""

from __future__ import annotations

from typing import Any

from tvmfuse.kernels import window
from tvmfuse.kernels.image import Window
from tvmfuse.passes.layout.geometry import (
    blocked_form,
    kernel,
    require_channels_first,
    window_of,
)
from tvmfuse.passes.layout.rewrite import (
    Expr,
    NotRewritable,
    Rewriter,
    Var,
    dtypes,
    operator,
    shape_of,
)
from tvmfuse.passes.layout.shapes import as_image


def pooling_window(call: Any, var: Var) -> Window:
    """Return the window of max or average pooling.

    Parameters
    ----------
    call : relax.Call
        The pooling.
    var : relax.Var
        Its result.

    Raises
    ------
    NotRewritable
        It is none that works on blocks.
    """
    (x,) = call.args
    require_channels_first(call.attrs)
    geometry = window_of(call.attrs, call.attrs.pool_size)
    rank = len(shape_of(x))
    geometry = _as_large_as(geometry, *(as_image(shape_of(v), rank)[2:] for v in (x, var)))
    is_rounded_up = bool(call.attrs.ceil_mode) and bool(call.attrs.count_include_pad)
    if "max_pool" not in operator(call) and is_rounded_up:
        raise NotRewritable("the divisor of rounded-up average pooling stays plain")
    return geometry


def pooling_kernel(rewriter: Rewriter, call: Any, geometry: Window, **more: Any) -> Expr:
    """Return pooling as a call of its kernel on blocks.

    Raises
    ------
    NotRewritable
        Its tensors are no float32.
    """
    (x,) = call.args
    if dtypes([x]) != {"float32"}:
        raise NotRewritable("blocked pooling needs float32")
    args = [rewriter.take(x, blocked_form(rewriter, x))]
    if "max_pool" in operator(call):
        return kernel(rewriter, args, window.emit_max, geometry, name="max_pool", **more)
    count = bool(getattr(call.attrs, "count_include_pad", False))
    emit = window.emit_mean
    return kernel(rewriter, args, emit, geometry, name="avg_pool", count_padding=count, **more)


def _as_large_as(geometry: Window, size: tuple[int, ...], out: tuple[int, ...]) -> Window:
    """Grow the padding at the end until the window gives ``out`` results (rounding up)."""
    top, left, bottom, right = geometry.padding
    span = geometry.span(*out)
    bottom = max(bottom, span[0] - size[0] - top)
    right = max(right, span[1] - size[1] - left)
    grown = Window(geometry.kernel, geometry.strides, (top, left, bottom, right), geometry.dilation)
    if grown.out(*size) != tuple(out):
        raise NotRewritable("the window does not give the declared shape")
    return grown

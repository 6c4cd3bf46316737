"""What the rules for convolutions and pooling share: windows, and the layout they expect."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfuse.kernels.image import Window
from tvmfuse.passes.layout.forms import Blocked
from tvmfuse.passes.layout.rewrite import Expr, NotRewritable, Rewriter, shape_of

_IMAGE_RANKS = (3, 4)


def blocked_form(rewriter: Rewriter, value: Expr) -> Blocked:
    """Return the blocked form for tensors of the rank of ``value``.

    Raises
    ------
    NotRewritable
        It is neither a row nor an image.
    """
    rank = len(shape_of(value))
    if rank not in _IMAGE_RANKS:
        raise NotRewritable("only rows and images have channels to block")
    return Blocked(rewriter.machine.block, rank)


def require_channels_first(attrs: Any) -> None:
    """Refuse an operator on another layout than NCHW or NCW.

    Raises
    ------
    NotRewritable
        It is another one.
    """
    layout = str(attrs.layout if hasattr(attrs, "layout") else attrs.data_layout)
    if layout not in ("NCHW", "NCW") or str(attrs.out_layout or layout) != layout:
        raise NotRewritable(f"layout {layout} is not blocked")


def window_of(attrs: Any, kernel: Sequence[Any]) -> Window:
    """Return the window of an operator's attributes; a row is an image of height one.

    Raises
    ------
    NotRewritable
        Its padding is negative.
    """
    sizes = [int(k) for k in kernel]
    strides, dilation = ([int(v) for v in values] for values in (attrs.strides, attrs.dilation))
    padding = [int(p) for p in attrs.padding]
    if min(*strides, *dilation, *padding, 1) < 0:
        raise NotRewritable("negative padding stays plain")
    if len(sizes) == 1:
        sizes, strides, dilation = [1, *sizes], [1, *strides], [1, *dilation]
        padding = [0, padding[0], 0, padding[1]]
    return Window(tuple(sizes), tuple(strides), tuple(padding), tuple(dilation))  # type: ignore[arg-type]


def kernel(
    rewriter: Rewriter, args: Sequence[Expr], emit: Any, geometry: Any, *, name: str, **more: Any
) -> Expr:
    """Return a call of the kernel that ``emit(*tensors, geometry, machine)`` makes."""
    machine = rewriter.machine
    return rewriter.kernel(lambda *t: emit(*t, geometry, machine, **more), *args, name=name)

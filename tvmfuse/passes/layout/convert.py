"""Copy tensors from one form to another at run time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import relayout
from tvmfuse.kernels.blocks import FAMILY, ROLE
from tvmfuse.passes.layout.forms import (
    Blocked,
    ConvWeight,
    DepthwiseWeight,
    Form,
)
from tvmfuse.passes.layout.shapes import Shape, as_image

Tensor = Any  # te.Tensor
Place = Callable[..., tuple[Any, ...]]

_IMAGE_RANK = 4


def can_arrange(form: Form) -> bool:
    """Whether a tensor that is not known when compiling can be brought into ``form``."""
    return isinstance(form, Blocked | ConvWeight | DepthwiseWeight)


def arranging(shape: Shape, form: Form) -> Callable[[Tensor], Tensor]:
    """Return an emitter that copies a plain tensor of ``shape`` into ``form``."""
    rank = form.rank if isinstance(form, Blocked) else len(shape)
    image = as_image(shape, rank)
    place = _place(form)

    def emit(x: Tensor) -> Tensor:
        def value(*index: Any) -> Any:
            at = place(*index)
            # A lower rank lacks axes in front; a row lacks the height.
            kept = at if rank == _IMAGE_RANK else (*at[:2], at[3])
            read = x[kept[rank - len(shape) :]]
            bounds = zip(at[:2], image[:2], _is_full(form, image), strict=True)
            inside = [i < size for i, size, is_full in bounds if not is_full]
            return te.if_then_else(te.all(*inside), read, _zero(x)) if inside else read

        is_ragged = isinstance(form, Blocked) and not all(_is_full(form, image))
        attrs = {FAMILY: "relayout", ROLE: relayout.BLOCKED} if is_ragged else {}
        return te.compute(form.shape(shape), value, name="to_blocked", attrs=attrs)

    return emit


def unblocking(shape: Shape) -> Callable[[Tensor], Tensor]:
    """Return an emitter that copies blocks into a plain tensor of ``shape``."""
    return lambda x: relayout.emit_plain(x, shape)


def _place(form: Form) -> Place:
    """Return where in the plain image of rank 4 an element of ``form`` comes from."""
    if isinstance(form, Blocked):
        return lambda n, c, h, w, i: (n, c * form.block + i, h, w)
    if isinstance(form, DepthwiseWeight):
        return lambda c, h, w, i: (c * form.block + i, 0, h, w)
    assert isinstance(form, ConvWeight)
    a, b = form.block_in, form.block_out
    return lambda o, i, h, w, ii, oi: (o * b + oi, i * a + ii, h, w)


def _is_full(form: Form, image: Shape) -> tuple[bool, bool]:
    """Whether blocks fill the first two axes of the plain image."""
    if isinstance(form, Blocked):
        return True, image[1] % form.block == 0
    if isinstance(form, DepthwiseWeight):
        return image[0] % form.block == 0, True
    assert isinstance(form, ConvWeight)
    return image[0] % form.block_out == 0, image[1] % form.block_in == 0


def _zero(x: Tensor) -> Any:
    return tirx.const(0, x.dtype)

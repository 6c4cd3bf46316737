"""Images, and the windows that convolution and pooling slide over them.

Padding is no pass over the input: a kernel copies the part that it needs into a scratch
image with what lies around it, or tests for the edge where it reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx
from tvmfuse.kernels.blocks import ROLE

Tensor = Any  # te.Tensor


@dataclass(frozen=True)
class Window:
    """A window that slides over an image.

    Parameters
    ----------
    kernel, strides, dilation : tuple of int
        Along height and width.
    padding : tuple of int
        Top, left, bottom, right.
    """

    kernel: tuple[int, int]
    strides: tuple[int, int] = (1, 1)
    padding: tuple[int, int, int, int] = (0, 0, 0, 0)
    dilation: tuple[int, int] = (1, 1)

    def out(self, height: int, width: int) -> tuple[int, int]:
        """Return the extents of the result over an image of ``height`` x ``width``."""
        top, left, bottom, right = self.padding
        return (
            self._out(0, height + top + bottom),
            self._out(1, width + left + right),
        )

    def span(self, height: int, width: int) -> tuple[int, int]:
        """Return the extents of the padded image that ``height`` x ``width`` results read."""
        return self._span(0, height), self._span(1, width)

    def taller(self, margin: tuple[int, int]) -> Window:
        """Return the window that gives as many more rows above and below the others."""
        top, left, bottom, right = self.padding
        above, below = (self.strides[0] * rows for rows in margin)
        padding = (top + above, left, bottom + below, right)
        return Window(self.kernel, self.strides, padding, self.dilation)

    @property
    def is_pointwise(self) -> bool:
        """Whether every result reads just the pixel at its own place."""
        return self.kernel == (1, 1) and self.strides == (1, 1) and not any(self.padding)

    def _out(self, axis: int, size: int) -> int:
        reach = self.dilation[axis] * (self.kernel[axis] - 1) + 1
        return (size - reach) // self.strides[axis] + 1

    def _span(self, axis: int, size: int) -> int:
        return (size - 1) * self.strides[axis] + self.dilation[axis] * (self.kernel[axis] - 1) + 1


def padded(x: Tensor, window: Window, rows: int, columns: int, *, fill: float = 0.0) -> Tensor:
    """Emit the scratch image that ``rows`` x ``columns`` results read.

    Parameters
    ----------
    x : te.Tensor
        (n, blocks, height, width, b).
    window : Window
        Geometry.
    rows, columns : int
        Results along height and width, whole tiles.
    fill : float
        Value outside the image.

    Returns
    -------
    te.Tensor
        ``x`` itself where nothing lies outside, else the padded image.
    """
    _, _, height, width, _ = (int(d) for d in x.shape)
    span_h, span_w = window.span(rows, columns)
    top, left, _, _ = window.padding
    if (top, left) == (0, 0) and span_h <= height and span_w <= width:
        return x
    return converted(x, window, rows, columns, dtype=x.dtype, fill=fill)


def widened(x: Tensor, window: Window, rows: int, columns: int, *, fill: float = 0.0) -> Tensor:
    """Emit the scratch image of :func:`padded` in float32."""
    emit_image = padded if str(x.dtype) == "float32" else partial(converted, dtype="float32")
    return emit_image(x, window, rows, columns, fill=fill)


def converted(
    x: Tensor, window: Window, rows: int, columns: int, *, dtype: str, fill: float = 0.0
) -> Tensor:
    """Emit the scratch image of :func:`padded` in another type, also where nothing is outside."""
    _, _, height, width, _ = (int(d) for d in x.shape)
    span_h, span_w = window.span(rows, columns)
    top, left, _, _ = window.padding
    return te.compute(
        (x.shape[0], x.shape[1], span_h, span_w, x.shape[4]),
        lambda n, c, h, w, i: te.if_then_else(
            te.all(h >= top, h < height + top, w >= left, w < width + left),
            approx.cast(x[n, c, h - top, w - left, i], dtype),
            tirx.const(fill, dtype),
        ),
        name="pad",
        attrs={ROLE: "pad"},
    )


def without_unused(result: Tensor, channels: int) -> Tensor:
    """Return ``result`` with zeros where its last block has no channel.

    Parameters
    ----------
    result : te.Tensor
        (n, blocks, height, width, b).
    channels : int
        Channels that there are.
    """
    block = int(result.shape[4])
    if channels % block == 0:
        return result
    zero = tirx.const(0, result.dtype)
    return te.compute(
        result.shape,
        lambda n, o, h, w, oi: tirx.Select(o * block + oi < channels, result[n, o, h, w, oi], zero),
        name="used",
    )

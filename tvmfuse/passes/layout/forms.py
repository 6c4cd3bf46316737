"""The ways in which a tensor may lie in memory.

A form maps the shape of the plain tensor to the shape it has in that form, and
rearranges a constant. Activations take only :class:`Plain`, :class:`Blocked` and
:class:`Trailing`; the others are for weights.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvmfuse.kernels import winograd
from tvmfuse.kernels.gemm import pack
from tvmfuse.kernels.grouped import Groups
from tvmfuse.kernels.tiling import ceil_div, round_up
from tvmfuse.passes.layout.integer_forms import (
    ChannelSums,
    ColumnSums,
    GroupRows,
    IntegerConvWeight,
    IntegerPanels,
    NarrowPanels,
)
from tvmfuse.passes.layout.shapes import Shape, as_image


@dataclass(frozen=True)
class Plain:
    """As the model has it."""

    def shape(self, shape: Shape) -> Shape:
        """Return the shape in this form of a plain tensor of ``shape``."""
        return shape

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """Return ``array`` in this form, contiguous."""
        return array


@dataclass(frozen=True)
class Converted:
    """As the model has it, in another type."""

    dtype: str

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        return shape

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        return array.astype(self.dtype)


@dataclass(frozen=True)
class Blocked:
    """Channels in blocks: (n, c, h, w) becomes (n, c / block, h, w, block).

    A last block that is not full holds zeros when it is made, and finite values
    that nothing reads after that.

    Parameters
    ----------
    block : int
        Channels in one block.
    rank : int
        Rank of the plain tensors that go together: 4 for images, 3 for rows
        (n, c, w), which become images of height one. An operand of lower rank
        stretches, as NumPy does, by leading ones.
    """

    block: int
    rank: int = 4

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        n, c, h, w = as_image(shape, self.rank)
        return (n, ceil_div(c, self.block), h, w, self.block)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        n, c, h, w = as_image(array.shape, self.rank)
        full = np.zeros((n, round_up(c, self.block), h, w), array.dtype)
        full[:, :c] = array.reshape(n, c, h, w)
        parts = full.reshape(n, -1, self.block, h, w)
        return np.ascontiguousarray(parts.transpose(0, 1, 3, 4, 2))


@dataclass(frozen=True)
class Trailing:
    """Blocks of one channel: (n, c, h, w) becomes (n, c, h, w, 1), the same bytes."""

    rank: int = 4

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        return (*as_image(shape, self.rank), 1)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        return array.reshape(self.shape(array.shape))


@dataclass(frozen=True)
class ConvWeight:
    """(out, in, [kh,] kw) becomes (out / b, in / a, kh, kw, a, b), filled with zeros."""

    block_in: int
    block_out: int

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        o, i, kh, kw = as_image(shape, len(shape))
        return (
            ceil_div(o, self.block_out),
            ceil_div(i, self.block_in),
            kh,
            kw,
            self.block_in,
            self.block_out,
        )

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        o, i, kh, kw = as_image(array.shape, array.ndim)
        shape = (round_up(o, self.block_out), round_up(i, self.block_in), kh, kw)
        full = np.zeros(shape, array.dtype)
        full[:o, :i] = array.reshape(o, i, kh, kw)
        parts = full.reshape(
            -1, self.block_out, full.shape[1] // self.block_in, self.block_in, kh, kw
        )
        return np.ascontiguousarray(parts.transpose(0, 2, 4, 5, 3, 1))


@dataclass(frozen=True)
class GroupedWeight:
    """(out, in of a group, [kh,] kw) becomes (out / b, reach, kh, kw, b, b).

    See :mod:`tvmfuse.kernels.grouped`.
    """

    groups: Groups

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        o, _, kh, kw = as_image(shape, len(shape))
        block = self.groups.block
        return (ceil_div(o, block), self.groups.reach, kh, kw, block, block)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        o, i, kh, kw = as_image(array.shape, array.ndim)
        block = self.groups.block
        full = np.full(self.shape(array.shape), -0.0, array.dtype)
        out, near = self.groups.places()
        present = array.reshape(o, i, kh, kw) + np.float32(0)  # of two zeros, the positive one
        full[out // block, near // block, :, :, near % block, out % block] = present
        return full


@dataclass(frozen=True)
class WinogradWeight:
    """(out, in, 3, 3) becomes (out / b, 6, 6, in / b, b, b): see :mod:`winograd`."""

    block: int

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        o, i, _, _ = shape
        blocks = (ceil_div(o, self.block), ceil_div(i, self.block))
        return (blocks[0], winograd.IN, winograd.IN, blocks[1], self.block, self.block)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        by_tap = winograd.FILTER @ array.astype(np.float64) @ np.transpose(winograd.FILTER)
        blocked = ConvWeight(self.block, self.block).arrange(by_tap.astype("f4"))
        return np.ascontiguousarray(blocked.transpose(0, 2, 3, 1, 4, 5))


@dataclass(frozen=True)
class TransposedWeight:
    """(in, out, [kh,] kw) becomes (phases, out / b, in / b, taps, taps, b, b).

    See :mod:`tvmfuse.kernels.transposed`.
    """

    block: int
    strides: tuple[int, int]

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        i, o, kh, kw = as_image(shape, len(shape))
        sh, sw = self.strides
        packed = ConvWeight(self.block, self.block).shape(
            (o, i, ceil_div(kh, sh), ceil_div(kw, sw))
        )
        return (sh * sw, *packed)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        i, o, kh, kw = as_image(array.shape, array.ndim)
        sh, sw = self.strides
        full = np.zeros((i, o, round_up(kh, sh), round_up(kw, sw)), array.dtype)
        full[:, :, :kh, :kw] = array.reshape(i, o, kh, kw)
        pack = ConvWeight(self.block, self.block).arrange
        backwards = full[:, :, ::-1, ::-1].swapaxes(0, 1)  # its last tap is phase s - 1 of tap 0
        return np.stack(
            [
                pack(backwards[:, :, sh - 1 - y :: sh, sw - 1 - x :: sw])
                for y in range(sh)
                for x in range(sw)
            ]
        )


@dataclass(frozen=True)
class DepthwiseWeight:
    """(channels, 1, [kh,] kw) becomes (channels / block, kh, kw, block), filled with zeros."""

    block: int
    dtype: str = "float32"

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        c, _, kh, kw = as_image(shape, len(shape))
        return (ceil_div(c, self.block), kh, kw, self.block)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        c, _, kh, kw = as_image(array.shape, array.ndim)
        full = np.zeros((round_up(c, self.block), kh, kw), self.dtype)
        full[:c] = array.reshape(c, kh, kw)
        return np.ascontiguousarray(full.reshape(-1, self.block, kh, kw).transpose(0, 2, 3, 1))


@dataclass(frozen=True)
class Channels:
    """One number for each channel: (c,) becomes (1, c / block, 1, 1, block)."""

    block: int

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        return Blocked(self.block).shape((*shape, 1, 1))

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        return Blocked(self.block).arrange(array[:, None, None])


@dataclass(frozen=True)
class Panels:
    """(..., k, n) with leading ones becomes (n / columns, k, columns): see :func:`gemm.pack`."""

    columns: int

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        return (ceil_div(shape[-1], self.columns), shape[-2], self.columns)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        return pack(array.reshape(array.shape[-2:]), self.columns)


@dataclass(frozen=True)
class Units:
    """([D,] H, gates * H) becomes (D, H / lanes, H, gates, lanes), filled with zeros.

    The gates are put into ``order``. See :mod:`tvmfuse.kernels.recurrent`.
    """

    order: tuple[int, ...]
    lanes: int

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        *directions, hidden, _ = shape
        count = directions[0] if directions else 1
        return (count, ceil_div(hidden, self.lanes), hidden, len(self.order), self.lanes)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        hidden, gates = array.shape[-2], len(self.order)
        by_gate = array.reshape(-1, hidden, gates, hidden)[:, :, list(self.order)]
        full = np.zeros((len(by_gate), hidden, gates, round_up(hidden, self.lanes)), array.dtype)
        full[..., :hidden] = by_gate
        parts = full.reshape(len(by_gate), hidden, gates, -1, self.lanes)
        return np.ascontiguousarray(parts.transpose(0, 3, 1, 2, 4))


@dataclass(frozen=True)
class FilterPanels:
    """(out, in, 1, 1) becomes (out / rows, in, rows) of float32: see :mod:`pointwise`."""

    rows: int
    dtype: str = "float32"

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        return (ceil_div(shape[0], self.rows), shape[1], self.rows)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        return pack(array.reshape(array.shape[:2]).T.astype(self.dtype), self.rows)


Form = (
    Plain
    | Converted
    | Blocked
    | Trailing
    | ConvWeight
    | GroupedWeight
    | WinogradWeight
    | TransposedWeight
    | DepthwiseWeight
    | Channels
    | Panels
    | Units
    | FilterPanels
    | IntegerPanels
    | ColumnSums
    | IntegerConvWeight
    | ChannelSums
    | NarrowPanels
    | GroupRows
)

PLAIN = Plain()

"""How weights of 8-bit products lie in memory; see :mod:`.forms` for what a form is."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tvmfuse.kernels.gemm.integer import IntegerPlan, column_sums, pack_integers
from tvmfuse.kernels.gemm.narrow import Narrow, pack_narrow, pack_scales
from tvmfuse.kernels.grouped import Groups
from tvmfuse.kernels.integer_conv import channel_sums, pack_conv, spread
from tvmfuse.kernels.tiling import ceil_div
from tvmfuse.passes.layout.shapes import Shape, as_image


@dataclass(frozen=True)
class IntegerPanels:
    """(..., k, n) becomes words of integers: see :func:`gemm.integer.pack_integers`."""

    columns: int
    plan: IntegerPlan

    @property
    def dtype(self) -> str:
        """Type of the elements in this form."""
        return self.plan.column_dtype

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        words = ceil_div(shape[-2], self.plan.group)
        return (ceil_div(shape[-1], self.columns), words, self.columns, self.plan.group)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        return pack_integers(array.reshape(array.shape[-2:]), self.columns, self.plan)


@dataclass(frozen=True)
class ColumnSums:
    """(..., k, n) becomes the sums of its columns, (n,) of int32."""

    dtype: str = "int32"

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        return shape[-1:]

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        return column_sums(array.reshape(array.shape[-2:]))


@dataclass(frozen=True)
class NarrowPanels:
    """(groups, group, n) becomes panels of bytes: see :func:`gemm.narrow.pack_narrow`."""

    stored: Narrow
    dtype: str

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        groups, group, n = shape
        columns = self.stored.columns
        return (ceil_div(n, columns), groups, group // self.stored.per_byte, columns)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        return pack_narrow(array, self.stored)


@dataclass(frozen=True)
class GroupRows:
    """(groups, 1, n) becomes (n / columns, groups, columns), filled with zeros."""

    columns: int

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        groups, _, n = shape
        return (ceil_div(n, self.columns), groups, self.columns)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        return pack_scales(array, self.columns)


@dataclass(frozen=True)
class IntegerConvWeight:
    """(out, in, [kh,] kw) becomes words of channels: see :func:`integer_conv.pack_conv`."""

    block_in: int
    block_out: int
    plan: IntegerPlan
    groups: Groups | None = None

    @property
    def dtype(self) -> str:
        """Type of the elements in this form."""
        return self.plan.column_dtype

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        o, i, kh, kw = as_image(shape, len(shape))
        outer = ceil_div(o, self.block_out)
        blocks = self.groups.reach if self.groups else ceil_div(i, self.block_in)
        words = ceil_div(self.block_in, self.plan.group)
        return (outer, blocks, kh, kw, words, self.block_out, self.plan.group)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        filters = array.reshape(as_image(array.shape, array.ndim))
        if self.groups is not None:
            filters = spread(filters, self.groups)
        return pack_conv(filters, self.block_in, self.block_out, self.plan)


@dataclass(frozen=True)
class ChannelSums:
    """(out, in, [kh,] kw) becomes the sums for each output channel, in blocks of int32."""

    block: int
    dtype: str = "int32"

    def shape(self, shape: Shape) -> Shape:
        """See :meth:`Plain.shape`."""
        return (1, ceil_div(shape[0], self.block), 1, 1, self.block)

    def arrange(self, array: np.ndarray) -> np.ndarray:
        """See :meth:`Plain.arrange`."""
        return channel_sums(array, self.block)

"""A kernel on a device as named numbers, for a learned cost model."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

VERSION = 5
"""Raised whenever a feature is added, dropped or computed in another way."""


@dataclass(frozen=True)
class Resources:
    """What the assembler of a GPU reports of a kernel, without running it.

    Parameters
    ----------
    registers : float
        Of one thread.
    spill_bytes : float
        That one thread keeps in memory for want of registers.
    shared_bytes : float
        Shared memory of one block.
    """

    registers: float = 0
    spill_bytes: float = 0
    shared_bytes: float = 0


NO_GPU = Resources()
UNKNOWN = Resources(math.nan, math.nan, math.nan)
"""Of a GPU kernel that was not assembled; XGBoost takes NaN for a missing value."""


@dataclass(frozen=True)
class Features:
    """One kernel on a device as the numbers that a learned cost model sees.

    A symbolic extent counts as 1. Shares lie between 0 and 1.
    """

    prior_us: float
    """Run time by the roofline."""
    compute_us: float
    """Its arithmetic alone, by the roofline."""
    memory_us: float
    """Its traffic alone, by the roofline."""
    flops: float
    """Operations, those done again included, in units of float32."""
    matmul_flops: float
    """Part of them in matrix products."""
    conv_flops: float
    """Part of them in convolutions that are not depthwise."""
    depthwise_flops: float
    """Part of them in depthwise convolutions."""
    window_flops: float
    """Part of them in pooling windows."""
    reduction_flops: float
    """Part of them in other reductions."""
    elementwise_flops: float
    """Part of them in operators element by element."""
    special_functions: float
    """Evaluations of exp, tanh, a division and their like, those done again included."""
    starts_threads: float
    """Whether it wakes the other cores: 1 or 0."""
    recompute_ratio: float
    """Operations over those without any done again."""
    intensity: float
    """Operations per byte touched."""
    activation_bytes: float
    """Distinct bytes read of run-time tensors."""
    constant_bytes: float
    """Distinct bytes read of constants."""
    written_bytes: float
    """Bytes written."""
    inner_bytes: float
    """Bytes of the values between its operators."""
    repeated_bytes: float
    """Bytes read again: by a stretched operand, a window, or the next tile of a product."""
    l1_read_bytes: float
    """Distinct bytes read that L1 holds, by the roofline."""
    l2_read_bytes: float
    """The same of L2."""
    l3_read_bytes: float
    """The same of L3."""
    dram_read_bytes: float
    """Those that come from memory."""
    l1_written_bytes: float
    """Bytes written that L1 holds, by the roofline."""
    l2_written_bytes: float
    """The same of L2."""
    l3_written_bytes: float
    """The same of L3."""
    dram_written_bytes: float
    """Those that go to memory."""
    l1_fill: float
    """Bytes touched as a share of all cores' L1; 0 where its size is not known."""
    l2_fill: float
    """The same for L2."""
    l3_fill: float
    """The same for L3."""
    launches: float
    """Kernels: 1, or 0 for views alone."""
    operators: float
    """Operators, views left out."""
    inputs: float
    """Tensors read from outside."""
    outputs: float
    """Tensors that leave."""
    live_values: float
    """Most values of one element that are needed at one time: registers."""
    parallelism: float
    """Elements of the largest output."""
    waves: float
    """Pieces of work for each core, by the size that schedules cut."""
    idle_share: float
    """Share of the cores' time that ragged pieces leave unused."""
    reduction_length: float
    """Terms of the longest sum."""
    rows: float
    """Rows of its product, or pixels of its convolution."""
    columns: float
    """Columns of its product, or output channels of its convolution."""
    row_waste: float
    """Share of a tile of 6 rows that is empty at the end."""
    column_waste: float
    """Share of a tile of 16 columns that is empty at the end."""
    window: float
    """Extent of its window."""
    stride: float
    """How many times smaller its output is than its input, along one side."""
    channels: float
    """Input channels of its convolution or window."""
    innermost: float
    """Extent of the last axis of its largest output."""
    innermost_waste: float
    """Share of a vector of 16 that is empty at the end of that axis."""
    image_channels: float
    """Channels of its largest tensor of four axes that is no constant; 0 without one."""
    channel_waste: float
    """Share of a block of 16 of them that is empty."""
    half_channel_waste: float
    """Share of a block of 8 of them that is empty."""
    channel_operands: float
    """Operands with one number for each channel or column."""
    row_operands: float
    """Other operands that are stretched, scalars left out."""
    images: float
    """Tensors of four axes that enter or leave: blocked layouts hold them."""
    layout_changes: float
    """Operators that move elements, transposes for example."""
    reductions: float
    """Reductions and windows in it."""
    products: float
    """Matrix products and convolutions in it."""
    broadcasts: float
    """Operators with a stretched operand."""
    opaques: float
    """Operators of unknown kind."""
    element_bytes: float
    """Size of the largest element type."""
    is_narrow: float
    """Whether an element type is below 4 bytes: 1 or 0."""
    is_tuned: float
    """Whether a record gives its schedule, rather than a default: 1 or 0."""
    registers: float
    """Registers of a thread of a GPU by its assembler; 0 on a CPU, NaN where nothing tells."""
    spill_bytes: float
    """Bytes that such a thread keeps in memory for want of registers, by its assembler."""
    shared_bytes: float
    """Shared memory of a block of a GPU, by its assembler."""
    device_gflops: float
    """Peak of the device."""
    device_l2_gbps: float
    """Bandwidth of its L2."""
    device_dram_gbps: float
    """Bandwidth of its memory."""
    device_dispatch_us: float
    """Time to start one kernel."""
    device_cores: float
    """Cores or multiprocessors."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the features in the order of :meth:`vector`."""
        return tuple(field.name for field in fields(cls))

    def vector(self) -> tuple[float, ...]:
        """Return the features as plain numbers in the order of :meth:`names`."""
        return tuple(float(value) for value in astuple(self))


def table(rows: Sequence[Features]) -> list[tuple[float, ...]]:
    """Return features as rows of plain numbers."""
    return [row.vector() for row in rows]

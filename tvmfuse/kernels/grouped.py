"""Convolution of channel groups that are not whole blocks.

The channels of one output block belong to one or a few groups, whose input channels
lie in one or a few neighbouring blocks. The weights of each output block span those
input blocks, and a product is left out, lane by lane, where input and output are of
different groups: multiplying by zero would carry an infinity from group to group.
Absent weights are marked by -0.0, which no present one is. The register tile and the
schedule are those of :mod:`tvmfuse.kernels.conv`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse._tvm import te, tirx
from tvmfuse.kernels import approx
from tvmfuse.kernels.blocks import FAMILY, ROLE, TILE
from tvmfuse.kernels.image import Window, widened
from tvmfuse.kernels.tiling import Machine, ceil_div, conv_tile, round_up

Tensor = Any  # te.Tensor

_ABSENT = 1 << 31  # the bits of -0.0; TVM 0.27 takes them for impossible in an int32


@dataclass(frozen=True)
class Groups:
    """Channel groups over blocks.

    Parameters
    ----------
    count : int
        Groups.
    channels_in, channels_out : int
        Of all groups together.
    block : int
        Channels in one block.
    """

    count: int
    channels_in: int
    channels_out: int
    block: int

    def first(self, out_block: Any) -> Any:
        """Return the first input block that an output block (a number or an index) reads."""
        return out_block * self.block // self._out * self._in // self.block

    @property
    def reach(self) -> int:
        """Input blocks that an output block reads at most."""
        reaches = []
        for out_block in range(ceil_div(self.channels_out, self.block)):
            last = min((out_block + 1) * self.block, self.channels_out) - 1
            end = (last // self._out + 1) * self._in
            reaches.append(ceil_div(end, self.block) - self.first(out_block))
        return max(reaches)

    @property
    def sharing(self) -> int:
        """Neighbouring output blocks that read the same input blocks."""
        return self._out // self.block if self._out % self.block == 0 else 1

    def places(self) -> tuple[np.ndarray, np.ndarray]:
        """Return for every weight (out, in of a group) the channels that it joins.

        Returns
        -------
        tuple of np.ndarray
            The output channel, and the input channel from the first block that it reads on.
        """
        shape = np.arange(self.channels_out), np.arange(self._in)
        out, within = np.meshgrid(*shape, indexing="ij")
        channel = out // self._out * self._in + within
        return out, channel - self.first(out // self.block) * self.block

    @property
    def _in(self) -> int:
        return self.channels_in // self.count

    @property
    def _out(self) -> int:
        return self.channels_out // self.count


def emit(x: Tensor, weight: Tensor, window: Window, machine: Machine, *, groups: Groups) -> Tensor:
    """Emit a grouped convolution.

    Parameters
    ----------
    x : te.Tensor
        (n, in / b, height, width, b), of any float type.
    weight : te.Tensor
        (out / b, reach, kh, kw, b, b), of that type; -0.0 where the groups differ.
    window : Window
        Geometry.
    machine : Machine
        The device.
    groups : Groups
        Which channels belong together.

    Returns
    -------
    te.Tensor
        (n, out / b, out height, out width, b).
    """
    batch, in_blocks, height, width, _ = (int(d) for d in x.shape)
    out_blocks, reach, kernel_h, kernel_w, block_in, block_out = (int(d) for d in weight.shape)
    out_h, out_w = window.out(height, width)
    # Neighbouring blocks read different pixels: nothing is gained by sharing a tile.
    tile = conv_tile(out_h, out_w, 1, machine, depth=reach * kernel_h * kernel_w * block_in)
    rows, columns = round_up(out_h, tile.height), round_up(out_w, tile.width)
    image = widened(x, window, rows, columns)
    c, ci = te.reduce_axis((0, reach), "c"), te.reduce_axis((0, block_in), "ci")
    kh, kw = te.reduce_axis((0, kernel_h), "kh"), te.reduce_axis((0, kernel_w), "kw")
    (sh, sw), (dh, dw) = window.strides, window.dilation

    def product(n: Any, o: Any, h: Any, w: Any, oi: Any) -> Any:
        block = te.min(groups.first(o) + c, in_blocks - 1)
        factor = approx.cast(weight[o, c, kh, kw, ci, oi], "float32")
        value = image[n, block, h * sh + kh * dh, w * sw + kw * dw, ci] * factor
        is_absent = tirx.reinterpret("uint32", factor) == tirx.const(_ABSENT, "uint32")
        return tirx.Select(is_absent, tirx.const(0, "float32"), value)

    result = te.compute(
        (batch, out_blocks, rows, columns, block_out),
        lambda *i: te.sum(product(*i), axis=[c, kh, kw, ci]),
        name="conv2d",
        attrs={FAMILY: "conv", ROLE: "anchor", TILE: [tile.height, tile.width, tile.blocks]},
    )
    return te.compute(
        (batch, out_blocks, out_h, out_w, block_out), lambda *i: result[i], name="crop"
    )

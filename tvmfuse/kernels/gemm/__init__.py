"""Matrix products by a register tile over packed columns.

The right operand lies in panels ``(columns / NR, K, NR)``: one step of the
reduction reads ``NR`` neighbouring floats. A constant weight is packed when
compiling; an operand that is known only at run time is packed by the kernel
itself, one panel per task. BLIS, MLAS and XNNPACK do the same; the tile comes
from :func:`tiling.gemm_tile`.

A ragged last row tile is computed whole: it reads its missing rows from the
last real one (clamped), and only the store is bounded. A predicate inside the
reduction would cost two thirds of the speed.

What one kernel may hold beside a product and its elementwise epilogue:

- several products of the same rows whose results the epilogue combines element by
  element, as in ``silu(x @ gate) * (x @ up)``: emit each by :func:`emit_packed` with
  panels of one width; their tiles are computed one after the other, in cache;
- several weights side by side (query, key, value): pack them as one wider weight;
- statistics of the rows that the epilogue reads, as in a norm folded into the weight,
  ``(x @ w) * rstd``: emit them by :func:`rows.reduce`; each task computes those of its
  own rows first;
- rows that are prepared before they are multiplied (converted, normalised): emit them
  by :func:`prepared`; each task prepares its own rows once, in scratch.

Rows of several batches that meet one weight are the rows of one product.
"""

from tvmfuse.kernels.gemm.products import (
    emit_batched,
    emit_packed,
    flattened,
    pack,
    prepared,
    rows_for,
    whole_tiles,
)
from tvmfuse.kernels.gemm.scheduling import register_tile, schedule

__all__ = [
    "emit_batched",
    "emit_packed",
    "flattened",
    "pack",
    "prepared",
    "register_tile",
    "rows_for",
    "schedule",
    "whole_tiles",
]

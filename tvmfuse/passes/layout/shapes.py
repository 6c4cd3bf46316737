"""Shapes of the tensors that lie together in channel blocks."""

from __future__ import annotations

Shape = tuple[int, ...]


def as_image(shape: Shape, rank: int) -> Shape:
    """Return the shape of rank 4 as which a tensor among others of ``rank`` is seen."""
    n, c, *spatial = (1,) * (rank - len(shape)) + tuple(shape)
    return (n, c, *(1,) * (2 - len(spatial)), *spatial)

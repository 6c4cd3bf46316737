"""Where ONNX's ``Resize`` samples, and by which weights; one axis at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Sampling:
    """How one axis is resampled.

    Parameters
    ----------
    in_size, out_size : int
        Extents before and after.
    scale : float
        Their ratio as the model gives it.
    transformation : str
        ONNX's name for how places of the result map to places of the image.
    antialias : bool
        Whether the filter is stretched where the image shrinks.
    exclude_outside : bool
        Whether what lies outside of the image has no weight; else its edge goes on there.
    cubic : float
        The coefficient of the cubic filter.
    region : tuple of float
        Begin and end of the part that is resampled, for ``tf_crop_and_resize``.
    """

    in_size: int
    out_size: int
    scale: float
    transformation: str = "half_pixel"
    antialias: bool = False
    exclude_outside: bool = False
    cubic: float = -0.75
    region: tuple[float, float] = (0.0, 1.0)

    @property
    def places(self) -> Array:
        """The place in the image of every place of the result."""
        i, last = np.arange(self.out_size, dtype=np.float64), self.in_size - 1
        centred = (i + 0.5) / self.scale - 0.5
        begin, end = self.region
        if self.transformation == "tf_crop_and_resize":
            if self.out_size == 1:
                return np.array([0.5 * (begin + end) * last])
            return begin * last + i * ((end - begin) * last / (self.out_size - 1))
        if self.transformation == "align_corners":
            return i * (last / (self.out_size - 1) if self.out_size > 1 else 0.0)
        if self.transformation == "asymmetric":
            return i / self.scale
        if self.transformation == "pytorch_half_pixel":
            return centred if self.out_size > 1 else np.zeros(1)
        if self.transformation == "half_pixel_symmetric":
            # The result is a little smaller than the scale says: keep it in the middle.
            part = self.out_size / (self.scale * self.in_size)
            return self.in_size / 2 * (1 - part) + centred
        if self.transformation == "half_pixel":
            return centred
        raise NotImplementedError(f"the transformation {self.transformation} is not supported")

    @property
    def outside(self) -> Array:
        """Which places lie beyond the image though its region was to be cropped from it."""
        if self.transformation != "tf_crop_and_resize":
            return np.zeros(self.out_size, bool)
        return (self.places < 0) | (self.places > self.in_size - 1)


def nearest(sampling: Sampling, rounding: str) -> Array:
    """Return for every place of the result the index that it takes."""
    roundings: dict[str, Callable[[Array], Array]] = {
        "round_prefer_floor": lambda x: np.ceil(x - 0.5),
        "round_prefer_ceil": lambda x: np.floor(x + 0.5),
        "floor": np.floor,
        "ceil": np.ceil,
    }
    index = roundings[rounding](sampling.places)
    return np.clip(index, 0, sampling.in_size - 1).astype(np.int64)


def weights(sampling: Sampling, mode: str) -> Array:
    """Return the weights (out size, in size) of linear or cubic resampling, in float64."""
    stretch = min(sampling.scale, 1.0) if sampling.antialias else 1.0
    reach = (1 if mode == "linear" else 2) / stretch
    matrix = np.zeros((sampling.out_size, sampling.in_size))
    for row, place in zip(matrix, sampling.places, strict=True):
        near = np.arange(np.floor(place - reach) + 1, np.ceil(place + reach))
        filtered = _filter(np.abs(near - place) * stretch, mode, sampling.cubic)
        inside = (near >= 0) & (near < sampling.in_size)
        if sampling.exclude_outside:
            filtered = np.where(inside, filtered, 0.0)
        index = np.clip(near, 0, sampling.in_size - 1).astype(np.int64)
        np.add.at(row, index, filtered / filtered.sum())
    return matrix


def _filter(distance: Array, mode: str, a: float) -> Array:
    """Return the weight of neighbours by their distance: a triangle, or Keys's cubic."""
    if mode == "linear":
        return np.maximum(1.0 - distance, 0.0)
    near = ((a + 2) * distance - (a + 3)) * distance * distance + 1
    far = ((a * distance - 5 * a) * distance + 8 * a) * distance - 4 * a
    return np.where(distance <= 1, near, np.where(distance < 2, far, 0.0))

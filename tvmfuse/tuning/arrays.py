"""Arguments that a kernel is tried with, and whether two results agree."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]

# Decisions change the order of tasks and loops, hardly ever that of sums: results differ by
# a few roundings of the largest value, while a wrong index shows in the first digit.
_ROUNDINGS = 64
_EPSILONS = {"float16": 2**-10, "bfloat16": 2**-7, "float32": 2**-23, "float64": 2**-52}
_MOST_INDEX = 100

SCALES = (1.0, 100.0)
"""Standard deviations tried: N(0, 1) alone hides an exponential that overflows."""


def arguments(
    types: Sequence[tuple[tuple[int, ...], str]], *, scale: float, seed: int
) -> list[Array]:
    """Return arrays of mixed sign for the parameters of a kernel.

    Parameters
    ----------
    types : sequence of (shape, dtype)
        Of the parameters, outputs included.
    scale : float
        Standard deviation of floats.
    seed : int
        Chooses the values.

    Returns
    -------
    list of ndarray
        Integers wider than a byte may be indices: they are below every extent.
    """
    rng = np.random.default_rng(seed)
    extents = [extent for shape, _ in types for extent in shape]
    n_values = max(1, min([_MOST_INDEX, *extents]))
    return [_array(rng, shape, dtype, scale, n_values) for shape, dtype in types]


def difference(found: Sequence[Array], expected: Sequence[Array]) -> str:
    """Say how results differ beyond rounding, or return ""."""
    for number, (ours, theirs) in enumerate(zip(found, expected, strict=True)):
        said = _difference(ours, theirs)
        if said:
            return f"argument {number} {said}"
    return ""


def _array(
    rng: np.random.Generator, shape: tuple[int, ...], dtype: str, scale: float, n_values: int
) -> Array:
    if dtype in _EPSILONS:
        import ml_dtypes  # noqa: F401 - teaches NumPy bfloat16

        return (scale * rng.standard_normal(shape)).astype(np.dtype(dtype))
    if dtype == "bool":
        return rng.integers(0, 2, shape).astype(dtype)
    kind = np.dtype(dtype)
    if kind.itemsize == 1:
        limits = np.iinfo(kind)
        return rng.integers(limits.min, limits.max, shape, kind, endpoint=True)
    return rng.integers(0, n_values, shape).astype(kind)


def _difference(found: Array, expected: Array) -> str:
    if np.array_equal(found, expected):  # as all inputs are
        return ""
    epsilon = _EPSILONS.get(str(expected.dtype))
    if epsilon is None:
        wrong = int(np.count_nonzero(found != expected))
        return f"differs in {wrong} of {expected.size} integers" if wrong else ""
    ours, theirs = found.astype("float64"), expected.astype("float64")
    if not np.array_equal(np.isfinite(ours), np.isfinite(theirs)):
        return "has NaN or infinity in other places"
    known = np.isfinite(theirs)
    largest = float(np.abs(theirs[known]).max(initial=0.0))
    distance = float(np.abs(ours[known] - theirs[known]).max(initial=0.0))
    allowed = _ROUNDINGS * epsilon * largest
    return f"is off by {distance:.3g}, and {allowed:.3g} is allowed" if distance > allowed else ""

"""Say how far two sets of outputs are apart."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse.errors import InputError


@dataclass(frozen=True)
class Difference:
    """How far one output is from its reference.

    Parameters
    ----------
    name : str
        Name of the output.
    error : float
        max |a - b| / max |b| over the finite places; max |a - b| where b is all
        zero. Infinite where shapes, dtypes or infinite places differ.
    has_same_nans : bool
        Whether NaN stands in the same places.
    is_close : bool
        Whether it passes: NaN in the same places, and ``error`` within the tolerance.
    note : str
        What else differs: the dtype or the shape.
    """

    name: str
    error: float
    has_same_nans: bool
    is_close: bool
    note: str = ""


def compare(
    found: Mapping[str, np.ndarray[Any, Any]],
    reference: Mapping[str, np.ndarray[Any, Any]],
    *,
    rtol: float,
) -> tuple[Difference, ...]:
    """Compare outputs by name.

    Parameters
    ----------
    found, reference : Mapping of str to numpy.ndarray
        The outputs to judge, and those to trust.
    rtol : float
        Largest ``error`` that passes.

    Raises
    ------
    InputError
        The two do not have outputs of the same names.
    """
    if found.keys() != reference.keys():
        raise InputError(
            f"compare: both sides need the same outputs, but got {', '.join(found)} "
            f"and {', '.join(reference)}"
        )
    return tuple(_difference(name, found[name], reference[name], rtol=rtol) for name in reference)


def _difference(
    name: str, a: np.ndarray[Any, Any], b: np.ndarray[Any, Any], *, rtol: float
) -> Difference:
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        note = f"{a.dtype} {list(a.shape)} instead of {b.dtype} {list(b.shape)}"
        return Difference(name, float("inf"), has_same_nans=False, is_close=False, note=note)
    a, b = a.astype(np.float64), b.astype(np.float64)
    has_same_nans = np.array_equal(np.isnan(a), np.isnan(b))
    error = _error(a, b)
    return Difference(name, error, has_same_nans, is_close=has_same_nans and error <= rtol)


def _error(a: np.ndarray[Any, Any], b: np.ndarray[Any, Any]) -> float:
    is_number = ~(np.isnan(a) | np.isnan(b))
    a, b = a[is_number], b[is_number]
    is_finite = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~is_finite], b[~is_finite]):
        return float("inf")
    a, b = a[is_finite], b[is_finite]
    if a.size == 0:
        return 0.0
    return float(np.max(np.abs(a - b)) / (np.max(np.abs(b)) or 1.0))

"""Values known when compiling, and how to change them without losing any."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from tvmfuse._tvm import relax, tvm

Array = npt.NDArray[Any]


def is_constant(expr: Any) -> bool:
    """Whether the value of ``expr`` is known; asking does not copy it."""
    return isinstance(expr, tvm.ir.GenericConst)


def constant(expr: Any) -> Array | None:
    """Return the value of a constant, None where ``expr`` is none."""
    return expr.value.numpy() if is_constant(expr) else None


def to_constant(array: Array, dtype: str) -> Any:
    """Return a constant that holds ``array`` as ``dtype``."""
    # order="C" keeps 0-d arrays 0-d, which np.ascontiguousarray does not.
    return relax.const(np.asarray(array, dtype=dtype, order="C"), dtype)


def narrowed(array: Array, dtype: str, *, along: int | None = None) -> Any:
    """Return a float64 array as a constant, if nothing but rounding is lost.

    Parameters
    ----------
    array : ndarray of float64
        The exact values.
    dtype : str
        A floating-point type.
    along : int, optional
        An axis of the array. Elements that share an index along it are summed by the
        operator that reads them, so only their largest must keep its precision. By
        default each element must.

    Returns
    -------
    relax constant or None
        None where values overflow, or vanish among the subnormal numbers.
    """
    with np.errstate(over="ignore", under="ignore"):
        rounded = array.astype(dtype)
    if not np.isfinite(rounded).all():
        return None
    scale = np.abs(array)
    if along is not None:
        others = tuple(axis for axis in range(array.ndim) if axis != along % array.ndim)
        scale = scale.max(axis=others, keepdims=True, initial=0.0)
    if (np.abs(array - rounded) > np.finfo(dtype).eps * scale).any():
        return None
    return to_constant(rounded, dtype)

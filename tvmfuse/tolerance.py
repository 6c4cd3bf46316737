"""How far apart two correct computations may be, by the type that they compute in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class Tolerance:
    """Largest max|a - b| / max|b| that passes.

    Parameters
    ----------
    kernel : float
        Of one kernel from the exact result: sums of up to about a thousand products,
        accumulated in the type itself.
    model : float
        Of a whole model from another runtime, where the errors of many kernels add up.
        The halves allow no more than for one kernel, since kernels sum them in float32.
    """

    kernel: float
    model: float


TOLERANCES: Mapping[str, Tolerance] = MappingProxyType(
    {
        "bfloat16": Tolerance(kernel=5e-2, model=5e-2),
        "float16": Tolerance(kernel=1e-2, model=1e-2),
        "float32": Tolerance(kernel=1e-5, model=1e-3),
        "float64": Tolerance(kernel=1e-11, model=1e-9),
    }
)
"""By floating type, the coarsest first. What is not in it is exact: integers, truth values."""


def coarsest(dtypes: Iterable[str]) -> str:
    """Return the floating type among ``dtypes`` that rounds most; "" where there is none."""
    found = set(dtypes)
    return next((dtype for dtype in TOLERANCES if dtype in found), "")


def of_model(precision: str) -> float:
    """Return what a model may be off whose coarsest floating type is ``precision``."""
    return TOLERANCES[precision].model if precision else 0.0

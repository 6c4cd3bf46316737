"""Fit the functions in tvmfuse/kernels/approx.py, and print their coefficients.

Lawson's weights turn a weighted least-squares fit into a minimax fit: each round
raises them where the error is large. For a rational function P / Q, Loeb's
iteration divides them by the last Q as well, which makes the problem linear.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.special import erf

Array = np.ndarray[Any, np.dtype[np.float64]]

_POINTS = 4001
_ROUNDS = 60
_LEAST_RAISE = 1e-3  # no weight falls faster than this in one round
_EXP_DEGREE = 6


@dataclass(frozen=True)
class Fit:
    """Coefficients and how well they fit.

    Parameters
    ----------
    coefficients : tuple of ndarray of float64
        One polynomial, or numerator and denominator; ascending.
    error : float
        Largest relative error, in exact arithmetic.
    """

    coefficients: tuple[Array, ...]
    error: float


@dataclass(frozen=True)
class Odd:
    """An odd function, the end of its interval, and the degrees to fit it with."""

    function: Callable[[Array], Array]
    limit: float
    degrees: tuple[int, int]


# Beyond its limit a function differs from 1 by less than neighbouring float32 numbers do.
ODD_FUNCTIONS = {
    "tanh": Odd(np.tanh, 9.0, (4, 4)),
    "erf": Odd(erf, 3.9, (6, 4)),
}


def fit_odd(problem: Odd) -> Fit:
    """Fit x P(x²) / Q(x²) with Q(0) = 1 on (0, limit]."""
    x = _chebyshev_points(0.0, problem.limit)[1:]
    values = problem.function(x) / x
    above, below = problem.degrees
    # (x / limit)² keeps the powers apart in size.
    powers = (x / problem.limit)[:, None] ** (2 * np.arange(max(above, below) + 1))
    basis = np.hstack([powers[:, : above + 1], -values[:, None] * powers[:, 1 : below + 1]])

    def denominator(solution: Array) -> Array:
        return 1 + powers[:, 1 : below + 1] @ solution[above + 1 :]

    solution, error = _minimax(basis, values, values, denominator)
    per_power = problem.limit ** (-2.0 * np.arange(max(above, below) + 1))
    p, q = solution[: above + 1], np.r_[1.0, solution[above + 1 :]]
    return Fit((p * per_power[: above + 1], q * per_power[: below + 1]), error)


def fit_exp() -> Fit:
    """Fit 1 + r + r² P(r) to e^r for |r| up to ln(2) / 2, with the first two terms exact."""
    r = _chebyshev_points(-np.log(2) / 2, np.log(2) / 2)
    basis = r[:, None] ** np.arange(2, _EXP_DEGREE + 1)
    rest = np.exp(r) - 1 - r
    solution, error = _minimax(basis, rest, np.exp(r), lambda _: np.ones_like(r))
    return Fit((np.r_[1.0, 1.0, solution],), error)


def fits() -> dict[str, Fit]:
    """Return every fit by the name of its function."""
    return {"exp": fit_exp(), **{name: fit_odd(odd) for name, odd in ODD_FUNCTIONS.items()}}


def main() -> None:
    """Print each fit as approx.py has it: nine digits tell any two float32 apart."""
    for name, found in fits().items():
        print(f"{name}: relative error {found.error:.1e}")
        for coefficients in found.coefficients:
            print(f"  ({', '.join(f'{c:.9g}' for c in coefficients)})")


def _minimax(
    basis: Array, target: Array, size: Array, denominator: Callable[[Array], Array]
) -> tuple[Array, float]:
    """Solve ``basis @ solution = target`` with the least error relative to size x denominator."""
    weights, last = np.ones_like(target), np.ones_like(target)
    for _ in range(_ROUNDS):
        scale = weights / (last * size)
        solution, *_ = np.linalg.lstsq(basis * scale[:, None], target * scale, rcond=None)
        last = denominator(solution)
        errors = np.abs(basis @ solution - target) / (last * size)
        weights *= np.sqrt(np.maximum(errors / errors.max(), _LEAST_RAISE))
        weights /= weights.max()
    return solution, float(errors.max())


def _chebyshev_points(low: float, high: float) -> Array:
    """Return points that lie closer at both ends, where a fit errs most."""
    return low + (high - low) * (1 - np.cos(np.linspace(0, np.pi, _POINTS))) / 2


if __name__ == "__main__":
    main()

"""When a search stops, as people say it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from tvmfuse.errors import InputError

DEFAULT_SECONDS = 300.0

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}


@dataclass(frozen=True)
class Budget:
    """When to stop; whichever is reached first.

    Parameters
    ----------
    trials : int, optional
        Candidates to measure.
    seconds : float, optional
        Time to search.
    within : float, optional
        Stop when the model expects less than this share of the time to be saved still.
    """

    trials: int | None = None
    seconds: float | None = None
    within: float | None = None


def budget(
    trials: int | None = None, time: str | float | None = None, within: str | float | None = None
) -> Budget:
    """Return a budget; of five minutes where nothing is said.

    Parameters
    ----------
    trials : int, optional
        Candidates to measure.
    time : str or float, optional
        Seconds, or text such as ``5m``.
    within : str or float, optional
        A share, or text such as ``5%``.

    Raises
    ------
    InputError
        One of them is none.
    """
    if trials is None and time is None and within is None:
        return Budget(seconds=DEFAULT_SECONDS)
    return Budget(
        trials,
        seconds(time) if isinstance(time, str) else time,
        share(within) if isinstance(within, str) else within,
    )


def seconds(text: str, option: str = "tune: --time") -> float:
    """Read a time such as ``90s``, ``5m`` or ``2h``; an error names the option.

    Raises
    ------
    InputError
        It is none, or not above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(f"{option} must be like 90s, 5m or 2h, but got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def share(text: str) -> float:
    """Read a share such as ``5%``.

    Raises
    ------
    InputError
        It is none, or not between 0 and 100 %.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%?", text.strip())
    if match is None or not 0 < float(match[1]) < 100:
        raise InputError(f"tune: --until-within must be like 5%, but got {text!r}")
    return float(match[1]) / 100

"""How sides are measured, and what became of each."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from tvmfuse.runtime.benchmark import PAUSE_S
from tvmfuse.runtime.timing import quartiles


@dataclass(frozen=True)
class Setting:
    """How every side is measured.

    Parameters
    ----------
    threads, rounds : int
        Threads of each side; rounds in which they take turns, 0 to time nothing.
    patience_s : float
        Longest time to wait for one answer, compiling included.
    scratch : Path
        Where models, inputs and what peers compile are kept.
    round_us : float
        About how long a turn lasts.
    pause_s : float
        How long all rest before a turn.
    store : Path, optional
        The records of the tuned side.
    metaschedule_s : float
        How long MetaSchedule may tune a model.
    """

    threads: int
    rounds: int
    patience_s: float
    scratch: Path
    round_us: float = 250e3
    pause_s: float = PAUSE_S
    store: Path | None = None
    metaschedule_s: float = 0.0


@dataclass(frozen=True)
class Result:
    """What became of one side on one model.

    Parameters
    ----------
    network, side : str
        Their names.
    version : str
        What the side says that it is; "" where it was not loaded.
    error : float, optional
        max |a - b| / max |b| against ONNX Runtime, the worst of all outputs; None where
        nothing was computed, or a shape or an infinite place differs.
    cause : str
        Why it has no times; "" where it has.
    is_alone : bool
        Whether it is too slow to take turns, and was timed alone.
    rounds_us : tuple of float
        The median of each round; of a side alone, the time of each call.
    ratios : tuple of float
        Its time over that of tvmfuse, round by round: above 1 tvmfuse is faster.
    compiled : Mapping
        What compiling it took, where that was a step of its own.
    """

    network: str
    side: str
    version: str = ""
    error: float | None = None
    cause: str = ""
    is_alone: bool = False
    rounds_us: tuple[float, ...] = ()
    ratios: tuple[float, ...] = ()
    compiled: Mapping[str, Any] | None = None

    def to_json(self) -> dict[str, Any]:
        """Return it, with medians and quartiles, as JSON-compatible data."""
        return {
            **asdict(self),
            "median_us": median(self.rounds_us) if self.rounds_us else None,
            "quartiles_us": quartiles(self.rounds_us) if self.rounds_us else None,
            "ratio": median(self.ratios) if self.ratios else None,
            "ratio_quartiles": quartiles(self.ratios) if self.ratios else None,
        }

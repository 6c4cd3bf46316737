"""What came of tuning a model."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tvmfuse.tuning.tuner import Status

MARK = 1.05
"""A model that is faster than this, or cannot be, has been tuned enough."""

FASTER = "faster"
A_LITTLE = "a little faster"
BEST = "default was best already"
OPEN = "search not finished"


@dataclass(frozen=True)
class KernelReport:
    """What became of one kernel; times in microseconds, of one run alone.

    Parameters
    ----------
    name, family : str
        The kernel, and its family.
    uses : int
        How often an inference runs it.
    points : int
        How many candidates its space has.
    trials, failures : int
        Candidates that were measured, and those of them that failed.
    default_us, best_us : float
        Time of the kernel without any trial, and of the fastest.
    decisions : dict
        What was decided for the fastest.
    changed : dict
        What of it is not as by default.
    is_kept : bool
        Whether the fastest made the whole model faster, so that a compile uses it.
    is_searched : bool
        Whether enough was measured to say that none is faster than the fastest.
    """

    name: str
    family: str
    uses: int
    points: int
    trials: int
    failures: int
    default_us: float
    best_us: float
    decisions: dict[str, Any]
    changed: dict[str, Any]
    is_kept: bool
    is_searched: bool

    @property
    def gain(self) -> float:
        """How many times as fast as by default the best is, alone; 1 where nothing is known."""
        return self.default_us / self.best_us if self.best_us else 1.0


@dataclass(frozen=True)
class Report:
    """What came of tuning a model.

    Parameters
    ----------
    status : Status
        How the search ended.
    kernels : tuple of KernelReport
        The most work first.
    default_us, tuned_us : float, optional
        Time of one inference without and with the records kept; None where no record was
        worth trying.
    first_s : float
        When the first candidate had been measured, from the beginning of all of it.
    seconds : float
        All that it took.
    untried : tuple of str
        Kernels whose faster candidates there was no time to confirm in the model.
    learned : str
        What the cost model has learned from it afterwards, in a line; "" where it was not to.
    """

    status: Status
    kernels: tuple[KernelReport, ...]
    default_us: float | None
    tuned_us: float | None
    first_s: float
    seconds: float
    untried: tuple[str, ...] = ()
    learned: str = ""

    @property
    def gain(self) -> float:
        """How many times as fast as by default the whole model is; 1 where nothing was kept."""
        if not any(kernel.is_kept for kernel in self.kernels):
            return 1.0
        return (self.default_us or 1.0) / (self.tuned_us or self.default_us or 1.0)

    @property
    def searched(self) -> float:
        """Share of the kernels' time, from 0 to 1, whose kernels had enough trials.

        Enough to say that nothing is faster than the fastest found.
        """
        times_us = {kernel.name: kernel.uses * kernel.default_us for kernel in self.kernels}
        if not all(times_us.values()):  # some have not been tried once
            return 0.0
        searched = [times_us[kernel.name] for kernel in self.kernels if kernel.is_searched]
        return sum(searched) / sum(times_us.values()) if times_us else 1.0

    @property
    def is_finished(self) -> bool:
        """Whether the rest could not make the model :data:`MARK` times as fast as it is."""
        return not self.untried and 1.0 - self.searched < 1.0 - 1.0 / MARK

    @property
    def outcome(self) -> str:
        """What came of it, in a few words: one of those above."""
        if self.gain >= MARK:
            return FASTER
        if not self.is_finished:
            return OPEN
        return A_LITTLE if any(kernel.is_kept for kernel in self.kernels) else BEST

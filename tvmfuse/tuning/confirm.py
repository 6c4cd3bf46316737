"""Keep a kernel's record only where the whole model is faster with it.

A kernel that is timed alone has the caches and the memory bus for itself: what wins there
may lose in a model.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tvmfuse import _pipeline, bundle
from tvmfuse._pipeline import Options
from tvmfuse.errors import TuningError
from tvmfuse.frontend import Model
from tvmfuse.plan import Tuned
from tvmfuse.runtime.benchmark import alternate
from tvmfuse.runtime.samples import random_inputs
from tvmfuse.runtime.side import Side, python_side
from tvmfuse.store.keys import workload_key
from tvmfuse.targets import Target
from tvmfuse.tuning.tuner import Progress

Ratio = Callable[[Sequence[Progress], Sequence[Progress]], float]

_NEEDED_GAIN = 0.005  # less than this is chance
_ROUND_US = 100e3

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Decided:
    """Records by workload: the ``Records`` of ``plan``, in memory."""

    tuned: Mapping[str, Tuned]

    @classmethod
    def of(cls, kernels: Sequence[Progress]) -> Decided:
        """Return the best of some kernels."""
        return cls({k.task.workload.key: k.best.tuned for k in kernels if k.best is not None})

    def best(self, family: str, kernel: Any) -> Tuned | None:
        """Return what is known of a kernel, or None."""
        return self.tuned.get(workload_key(kernel))


@dataclass
class WholeModel:
    """A model that is compiled with some records and without, and timed in alternation.

    Parameters
    ----------
    model : Model
        The model.
    target : Target
        What it is compiled for.
    folder : Path
        Where its bundles may lie.
    threads : int
        Threads that it may use.
    options : Options
        What it is planned by.
    rounds : int
        Rounds of about a tenth of a second in which both take turns.
    times_us : Mapping
        Time of one inference by the workloads whose records were used, as last measured.
    """

    model: Model
    target: Target
    folder: Path
    threads: int
    options: Options = field(default_factory=Options)
    rounds: int = 9
    times_us: dict[frozenset[str], float] = field(default_factory=dict)
    _bundles: dict[frozenset[str], Path] = field(default_factory=dict)

    def ratio(self, old: Sequence[Progress], new: Sequence[Progress]) -> float:
        """Return the time of one inference with the records of ``new`` over that with ``old``.

        Raises
        ------
        TuningError
            A side could not run.
        """
        sides = [self._side("old", old), self._side("new", new)]
        measured = alternate(sides, rounds=self.rounds, round_us=_ROUND_US)
        self.times_us[_names(old)] = measured.timings["old"].median_us
        self.times_us[_names(new)] = measured.timings["new"].median_us
        return median(measured.ratios("new", "old"))

    def time_default(self) -> float:
        """Return the time of one inference without any record, in microseconds.

        Raises
        ------
        TuningError
            It could not run.
        """
        measured = alternate([self._side("default", ())], rounds=3, round_us=_ROUND_US)
        self.times_us[frozenset()] = measured.timings["default"].median_us
        return self.times_us[frozenset()]

    def _side(self, name: str, kernels: Sequence[Progress]) -> Side:
        inputs = self.folder / "inputs.npz"
        if not inputs.exists():
            np.savez(inputs, **random_inputs(self.model.signature.inputs))  # type: ignore[arg-type]
        side = python_side("tvmfuse", self._bundle(kernels), inputs, threads=self.threads)
        return replace(side, name=name)

    def _bundle(self, kernels: Sequence[Progress]) -> Path:
        names = _names(kernels)
        if names not in self._bundles:
            options = replace(self.options, records=Decided.of(kernels))
            compiled = _pipeline.build(self.model, self.target, options=options)
            path = self.folder / f"{len(self._bundles)}.tvmfuse"
            self._bundles[names] = bundle.save(compiled, path).path
        return self._bundles[names]


@dataclass(frozen=True)
class Confirmed:
    """What came of timing records in a whole model.

    Parameters
    ----------
    kept : list of Progress
        Kernels whose records make it faster.
    untried : list of Progress
        Kernels for which there was no time.
    """

    kept: list[Progress]
    untried: list[Progress]


def confirm(
    winners: Sequence[Progress], ratio: Ratio, *, is_over: Callable[[], bool] = lambda: False
) -> Confirmed:
    """Find the kernels whose records make the whole model faster.

    All are tried at once; where that does not help, its halves are, down to one kernel.

    Parameters
    ----------
    winners : sequence of Progress
        Kernels whose best candidate beats the default alone.
    ratio : callable
        ``ratio(old, new)`` times the model with two sets of records: below 1 the new is faster.
    is_over : callable
        Whether time is up; all together are tried even so.
    """
    kept: list[Progress] = []
    first = sorted(winners, key=lambda each: each.gain_us, reverse=True)
    groups = [first] if first else []
    while groups and (groups[0] is first or not is_over()):
        group = groups.pop()
        try:
            is_faster = ratio(kept, [*kept, *group]) < 1.0 - _NEEDED_GAIN
        except TuningError as error:  # what cannot be timed in the whole is not kept
            _log.warning("tune: %d records could not be confirmed: %s", len(group), error)
            is_faster = False
        if is_faster:
            kept += group
        elif len(group) > 1:
            middle = len(group) // 2
            groups += [group[middle:], group[:middle]]
    return Confirmed(kept, [kernel for group in groups for kernel in group])


def _names(kernels: Sequence[Progress]) -> frozenset[str]:
    return frozenset(kernel.task.workload.key for kernel in kernels)

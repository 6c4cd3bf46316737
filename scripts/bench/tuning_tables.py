"""Measure every point of some kernels' spaces, and let the search loose on these tables.

Both are judged by the same numbers, and the search can be repeated with many seeds for nothing.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from journal import digest

import tvmfuse
from tvmfuse import _pipeline
from tvmfuse._tvm.threads import in_use
from tvmfuse.calibrate import calibrated
from tvmfuse.frontend import import_model
from tvmfuse.passes.schedule import machine_of
from tvmfuse.targets import resolve
from tvmfuse.tuning.campaign import Settings
from tvmfuse.tuning.history import StoreHistory
from tvmfuse.tuning.measure import Limits, WorkerMeasurer
from tvmfuse.tuning.sessions import open_history
from tvmfuse.tuning.space import Axis, Point, Space, key
from tvmfuse.tuning.strategy import Search
from tvmfuse.tuning.task import Task, tasks_of

SEEDS = 10
_BATCH = 6
_FEWEST = 60  # points of a space that is worth searching
_LIMITS = Limits(budget_us=20e3, trial_s=60.0)

Table = dict[tuple[tuple[str, Any], ...], float | None]


@dataclass(frozen=True)
class Measured:
    """One kernel and the times of its points.

    Parameters
    ----------
    name : str
        Model and kernel.
    default_us, best_us : float
        Times of the zero-trial kernel and of the fastest point.
    points : int
        Points that were measured: all, or a random part of a large space.
    curves_us : list of list of float
        The best time after each trial of the search, for each seed.
    """

    name: str
    default_us: float
    best_us: float
    points: int
    curves_us: list[list[float]]

    def gain(self, trials: int) -> float:
        """Return the share of the whole gain that half of the seeds have after some trials."""
        whole = self.default_us - self.best_us
        at = [curve[min(trials, len(curve)) - 1] for curve in self.curves_us]
        return median((self.default_us - best) / whole for best in at) if whole > 0 else 1.0


@dataclass(frozen=True)
class Kept:
    """The table of one kernel: enough to search in it again, without the kernel.

    Parameters
    ----------
    name, family : str
        Model and kernel, and its family.
    space : Space
        Its decisions.
    table : dict
        Time of each point that was measured, in microseconds; None where it failed.
    """

    name: str
    family: str
    space: Space
    table: Table

    def to_json(self) -> dict[str, Any]:
        """Return it as JSON-compatible data."""
        axes = [[axis.name, list(axis.options), axis.default] for axis in self.space.axes]
        points = [[dict(point), time_us] for point, time_us in self.table.items()]
        return {"name": self.name, "family": self.family, "axes": axes, "points": points}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Kept:
        """Rebuild it from :meth:`to_json`."""
        axes = tuple(Axis(name, tuple(options), at) for name, options, at in data["axes"])
        table = {key(point): time_us for point, time_us in data["points"]}
        return cls(data["name"], data["family"], Space(axes), table)


def chosen(models: Sequence[Path], per_model: Sequence[int]) -> list[tuple[str, Task]]:
    """Return the heaviest kernels of some models."""
    target = calibrated(resolve("cpu"))
    found: list[tuple[str, Task]] = []
    for path, count in zip(models, per_model, strict=True):
        prepared = _pipeline.prepare(import_model(path).module, target)
        tasks = tasks_of(prepared, machine_of(target), strategy="families")
        worth = [task for task in tasks if task.space.size >= _FEWEST][:count]
        found += [(f"{path.stem} {task.name}", task) for task in worth]
    return found


def build(kernels: Sequence[tuple[str, Task]], libraries: Path, *, limit: int) -> None:
    """Compile ``limit`` points of each kernel, which a busy machine may do."""
    with _worker(libraries) as worker:
        for number, (name, task) in enumerate(kernels, 1):
            print(f"build {number}/{len(kernels)} {name}", file=sys.stderr, flush=True)
            for point in _points(task, limit):
                worker.build(task, point)


def measure(
    kernels: Sequence[tuple[str, Task]], database: Path, libraries: Path, *, limit: int
) -> list[Kept]:
    """Measure ``limit`` points of each kernel, but for those that the store holds."""
    target = calibrated(resolve("cpu"))
    found = []
    with (
        open_history(str(database), target, Settings(), command="tuning_curve") as history,
        _worker(libraries) as worker,
    ):
        for number, (name, task) in enumerate(kernels, 1):
            print(f"{number}/{len(kernels)} {name}", file=sys.stderr, flush=True)
            table = _table(task, history, worker, limit=limit)
            found.append(Kept(name, task.family, task.space, table))
    return found


def _worker(libraries: Path) -> WorkerMeasurer:
    target = calibrated(resolve("cpu"))
    folder = libraries / digest(Path(tvmfuse.__file__).parent / "kernels")
    how = {"threads": in_use(), "limits": _LIMITS, "libraries": folder}
    return WorkerMeasurer(target, machine_of(target), **how)


def _points(task: Task, limit: int) -> list[Point]:
    return [task.space.default, *task.space.points(Random(0), limit=limit)]


def summary(kept: Kept) -> Measured:
    """Let the search loose on a table."""
    times = [time for time in kept.table.values() if time is not None]
    default_us = kept.table[key(kept.space.default)] or max(times)
    curves = [curve(kept.space, kept.table, seed=seed) for seed in range(SEEDS)]
    return Measured(kept.name, default_us, min(times), len(kept.table), curves)


def curve(space: Space, table: Mapping[Any, float | None], *, seed: int) -> list[float]:
    """Return the best time after each trial of the search on a table."""
    search = Search(space, seed=seed)
    search.only(table)
    best: list[float] = []
    while len(best) < len(table):
        batch = search.propose(_BATCH)
        if not batch:
            break
        for point in batch:
            search.observe(point, table[key(point)])
            best.append(search.best_us)
    return best


def _table(
    task: Task, history: StoreHistory, worker: WorkerMeasurer, *, limit: int
) -> dict[tuple[tuple[str, Any], ...], float | None]:
    known = {key(trial.decisions): trial.median_us for trial in history.past(task)}
    default = key(task.space.default)
    table: Table = {}
    for point in _points(task, limit):
        time_us = known.get(key(point))
        if key(point) not in known:
            best_us = min(filter(None, table.values()), default=None)
            trial = worker(task, point, default_us=table.get(default), best_us=best_us)
            history.commit(task, trial)
            time_us = trial.median_us
        table[key(point)] = time_us
    return table

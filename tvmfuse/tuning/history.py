"""Where trials are kept, and what earlier ones tell."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, Protocol

from tvmfuse._tvm import tvm
from tvmfuse.kernels import families
from tvmfuse.store import Device, Filter, Record, Session, Store, TargetKey, Workload
from tvmfuse.store.kernels import renamed
from tvmfuse.store.keys import entry, is_same_module
from tvmfuse.store.records import TIMED, to_text
from tvmfuse.tuning.measure import Trial
from tvmfuse.tuning.ranker import Sample
from tvmfuse.tuning.space import TRACE, Point
from tvmfuse.tuning.task import Task

VERSIONS: Mapping[str, int] = {
    **dict.fromkeys((*families.FAMILIES, families.JOINED), 1),
    **dict.fromkeys(("generic", "nest", "reduction", "relayout", "resize", families.JOINED), 2),
}
"""Version of each family's decisions: raised when a record of the old ones no longer fits."""

_MOST_SIMILAR = 400  # records of other kernels that a search starts from
_SIMILAR_WEIGHT = 0.2


class History(Protocol):
    """Keeps trials; each is safe once :meth:`commit` returns."""

    def past(self, task: Task) -> list[Trial]:
        """Return the trials of a kernel on this very device, oldest first."""
        ...

    def similar(self, task: Task) -> list[Sample]:
        """Return what is known of other kernels of the family, for the ranker."""
        ...

    def commit(self, task: Task, trial: Trial, *, is_best: bool = False) -> None:
        """Keep a trial; ``is_best`` where it was found to help in a whole model."""
        ...


@dataclass
class StoreHistory:
    """Trials in a tuning store.

    Parameters
    ----------
    store : Store
        The store.
    device : Device
        This device.
    target : TargetKey
        What kernels are compiled for.
    session : Session
        Provenance of new records; it has been added to the store.
    """

    store: Store
    device: Device
    target: TargetKey
    session: Session
    _stored: dict[str, Workload] = field(default_factory=dict)

    def past(self, task: Task) -> list[Trial]:
        """Return the trials of a kernel on this very device, oldest first."""
        wanted = Filter(key=self._key(task))
        return [
            Trial(self._point(task, record), _plain(record), record.times_us, record.reason)
            for record in self.store.records(wanted)
            if record is not None and self._is_here(record) and self._is_current(task, record)
        ]

    def similar(self, task: Task) -> list[Sample]:
        """Return the timed trials of other kernels of the family on this device family."""
        own, version = self._key(task), VERSIONS.get(task.family, 0)
        first: dict[str, float] = {}
        found = []
        for record in islice(self._of_family(task.family), _MOST_SIMILAR):
            if record is None or record.status not in TIMED or record.workload == own:
                continue
            if record.family_version != version:
                continue
            time_us = record.median_us or math.inf
            reference = first.setdefault(record.workload, time_us)  # the default comes first
            position = task.space.position(record.decisions or {})
            found.append(Sample(position, math.log(time_us / reference), _SIMILAR_WEIGHT))
        return found

    def commit(self, task: Task, trial: Trial, *, is_best: bool = False) -> None:
        """Keep a trial.

        Raises
        ------
        StoreError
            The store cannot be written to.
        """
        self.store.commit(
            Record(
                workload=self._key(task),
                device=self.device,
                target=self.target,
                status="ok" if is_best else trial.status,
                times_us=trial.times_us,
                reason=trial.reason,
                accumulation=task.accumulation,
                session=self.session.uid,
                **self._how(task, trial),
            )
        )

    def _of_family(self, family: str) -> Iterator[Record | None]:
        """Yield the trials of a kernel family: those of this device, then those of its like."""
        for device in sorted(self.store.devices(), key=lambda each: each != self.device):
            if (device.kind, device.family) == (self.device.kind, self.device.family):
                yield from self.store.records(Filter(family=family, device=device.fingerprint))

    def _key(self, task: Task) -> str:
        return self._workload(task).key

    def _workload(self, task: Task) -> Workload:
        """Return the kernel as the store knows it: its key and its names may be others."""
        key = task.workload.key
        if key not in self._stored:
            there = self.store.add_workload(task.workload, is_same_module)
            self._stored[key] = self.store.workload(there) or task.workload
        return self._stored[key]

    def _point(self, task: Task, record: Record) -> Point:
        """Return the point that a record measured."""
        if record.family or record.trace is None:
            return record.decisions or {}
        return {TRACE: to_text(_between(record.trace, self._workload(task), task.workload))}

    def _how(self, task: Task, trial: Trial) -> dict[str, Any]:
        """Return the fields of a record that say how the kernel was scheduled."""
        if TRACE in trial.decisions:
            trace = json.loads(trial.decisions[TRACE])
            return {"trace": _between(trace, task.workload, self._workload(task))}
        version = VERSIONS.get(task.family, 0)
        decisions = dict(trial.decisions)
        return {"family": task.family, "family_version": version, "decisions": decisions}

    def _is_here(self, record: Record) -> bool:
        return (record.device.fingerprint, record.target.key) == (
            self.device.fingerprint,
            self.target.key,
        )

    def _is_current(self, task: Task, record: Record) -> bool:
        """Whether what was measured then would be measured now."""
        versions = self.session.versions
        if (record.versions.tvm, record.versions.ffi) != (versions.tvm, versions.ffi):
            return False
        version = VERSIONS.get(record.family, 0)
        return record.family in ("", task.family) and record.family_version == version


@dataclass
class MemoryHistory:
    """Trials in memory, for a search that nobody will ask for again."""

    trials: list[tuple[Task, Trial, bool]] = field(default_factory=list)

    def past(self, task: Task) -> list[Trial]:
        """Return the trials of a kernel, oldest first."""
        return [t for other, t, _ in self.trials if other.workload.key == task.workload.key]

    def similar(self, task: Task) -> list[Sample]:
        """Return nothing: all kernels of one search are measured alike."""
        return []

    def commit(self, task: Task, trial: Trial, *, is_best: bool = False) -> None:
        """Keep a trial."""
        self.trials.append((task, replace(trial), is_best))


def _plain(record: Record) -> Any:
    return "measured" if record.status in TIMED else record.status


def _between(trace: list[Any], one: Workload, other: Workload) -> list[Any]:
    """Return a trace of one workload in the names of another, equal one."""
    if one.module == other.module:
        return trace
    return renamed(trace, one.module, entry(tvm.ir.load_json(other.module)))

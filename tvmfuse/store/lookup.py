"""Which record is used: of this very device, else of its family where allowed, else none."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from tvmfuse.store.records import Device, Record, TargetKey, Workload
from tvmfuse.store.versions import Versions

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Query:
    """What a record is wanted for.

    Parameters
    ----------
    workload : str
        Key of the workload.
    device : Device
        The device that will run it.
    target : TargetKey
        The target that it is compiled for.
    family : str, optional
        Only records of this kernel family.
    has_trace : bool
        Only records that TVM can replay.
    accumulation : str, optional
        Only records whose sums are of this element type.
    """

    workload: str
    device: Device
    target: TargetKey
    family: str | None = None
    has_trace: bool = False
    accumulation: str | None = None

    def accepts(self, record: Record, *, any_of_family: bool) -> bool:
        """Whether a record is one that was asked for; a damaged index may offer another."""
        # Relatives differ in fingerprint and in the name of the target, not in their kinds.
        is_near = (
            (record.device.kind, record.device.family, record.target.kind)
            == (self.device.kind, self.device.family, self.target.kind)
            if any_of_family
            else (record.device.fingerprint, record.target.key)
            == (self.device.fingerprint, self.target.key)
        )
        return (
            is_near
            and record.workload == self.workload
            and record.status == "ok"
            and self.family in (None, record.family)
            and self.accumulation in (None, record.accumulation)
            and (record.trace is not None or not self.has_trace)
        )


@dataclass(frozen=True)
class Found:
    """A record, and what must be said or done before it is used.

    Parameters
    ----------
    record : Record
        The record.
    source : Source
        Where it was found.
    note : str
        What a report should say, or "".
    needs_verification : bool
        Whether another TVM measured it: replay it and compare its numbers first.
    """

    record: Record
    source: Source
    note: str = ""
    needs_verification: bool = False


class Source(Protocol):
    """Something that holds records: a store, or a pack."""

    @property
    def name(self) -> str:
        """What a report calls it."""
        ...

    def workloads(self, bucket: str) -> Sequence[Workload]:
        """Return the whole workloads of one bucket."""
        ...

    def ranked(self, query: Query, *, any_of_family: bool, limit: int) -> Sequence[Record]:
        """Return the fastest whole records that were asked for, best first."""
        ...


def find(
    sources: Sequence[Source], query: Query, *, allow_family: bool = False, limit: int = 1
) -> tuple[Found, ...]:
    """Return the best records of the first source that has any.

    All sources are asked for this very device before any is asked for its family.

    Parameters
    ----------
    sources : sequence of Source
        The user's store, then the packs beneath it.
    query : Query
        What is wanted.
    allow_family : bool
        Whether records of other devices of the same family will do.
    limit : int
        How many at most.
    """
    # A pack's record of this very device comes before the user's own of a relative, whose best
    # may not be the best here.
    versions = Versions.installed()
    for any_of_family in (False, True)[: 1 + allow_family]:
        for source in sources:
            records = source.ranked(query, any_of_family=any_of_family, limit=limit)
            if records:
                return tuple(_found(record, query, source, versions) for record in records)
    return ()


@dataclass(frozen=True)
class Keyed:
    """A source that is asked for one workload, by the key that it has there.

    Keys of one bucket are numbered as they come, so each store has its own.

    Parameters
    ----------
    source : Source
        Holds the records.
    workload : Workload
        The workload.
    """

    source: Source
    workload: Workload

    @property
    def name(self) -> str:
        """What a report calls it."""
        return self.source.name

    def workloads(self, bucket: str) -> Sequence[Workload]:
        """Return the one workload, where it is of this bucket."""
        return [self.workload] if self.workload.bucket == bucket else []

    def ranked(self, query: Query, *, any_of_family: bool, limit: int) -> Sequence[Record]:
        """Return the fastest whole records that were asked for, best first."""
        named = replace(query, workload=self.workload.key)
        return self.source.ranked(named, any_of_family=any_of_family, limit=limit)


def whole(records: Sequence[Record | None], name: str) -> list[Record]:
    """Return the records that are not damaged, and log how many are."""
    kept = [record for record in records if record is not None]
    if len(kept) < len(records):
        n_damaged = len(records) - len(kept)
        _log.warning("store: %s: %d damaged records were passed over", name, n_damaged)
    return kept


def _found(record: Record, query: Query, source: Source, versions: Versions) -> Found:
    notes = []
    if record.device.fingerprint != query.device.fingerprint:
        notes.append(f"measured on {record.device.name}, of the family {record.device.family}")
    elif record.target.key != query.target.key:
        notes.append("measured here for another target of the same family")
    if record.versions.tvm != versions.tvm:
        notes.append(f"measured with TVM {record.versions.tvm}")
    note = f"{'; '.join(notes)} ({source.name})" if notes else ""
    # Another TVM may lower the same decisions to other code: the numbers must be checked anew.
    return Found(record, source, note, record.versions.tvm != versions.tvm)

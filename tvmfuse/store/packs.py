"""Packs: read-only records in text, by device family, used beneath the user's store."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from tvmfuse import files
from tvmfuse.errors import StoreError
from tvmfuse.store import jsonl
from tvmfuse.store.exchange import Item
from tvmfuse.store.lookup import Query
from tvmfuse.store.queries import Filter
from tvmfuse.store.records import Device, Record, Workload
from tvmfuse.store.store import Store

SUFFIX = ".jsonl"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Pack:
    """The records of one file.

    Parameters
    ----------
    path : Path
        The file.
    by_bucket : dict
        Workloads.
    by_workload : dict
        Records of each workload, best first.
    """

    path: Path
    by_bucket: dict[str, list[Workload]] = field(default_factory=dict)
    by_workload: dict[str, list[Record]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """What a report calls it."""
        return self.path.name

    def workloads(self, bucket: str | None = None) -> Sequence[Workload]:
        """Return the workloads of one bucket, or all."""
        if bucket is None:
            return [each for several in self.by_bucket.values() for each in several]
        return self.by_bucket.get(bucket, [])

    def ranked(self, query: Query, *, any_of_family: bool, limit: int) -> Sequence[Record]:
        """Return the fastest records that were asked for, best first."""
        records = self.by_workload.get(query.workload, [])
        return [r for r in records if query.accepts(r, any_of_family=any_of_family)][:limit]


def load_packs(folders: Iterable[Path], device: Device | None = None) -> tuple[Pack, ...]:
    """Load the packs of some folders; lines that are damaged are passed over and logged.

    Parameters
    ----------
    folders : iterable of Path
        The project's own come before those that were shipped.
    device : Device, optional
        Only packs of its family; no other could hold anything for it.

    Raises
    ------
    StoreError
        A file is none, or cannot be read.
    """
    paths = (path for folder in folders for path in sorted(folder.glob(f"*{SUFFIX}")))
    wanted = None if device is None else (device.kind, device.family)
    return tuple(load_pack(path) for path in paths if wanted in (None, _family_of(path)))


def _family_of(path: Path) -> tuple[str, str]:
    header = jsonl.header(path)
    return str(header.get("kind")), str(header.get("device_family"))


def load_pack(path: Path) -> Pack:
    """Load one pack."""
    pack = Pack(path)
    for item in jsonl.read(path):
        match item:
            case str():
                _log.warning("store: %s: %s", path, item)
            case Workload():
                pack.by_bucket.setdefault(item.bucket, []).append(item)
            case Record():
                pack.by_workload.setdefault(item.workload, []).append(item)
    for records in pack.by_workload.values():
        records.sort(key=_rank)
    return pack


def write_pack(
    store: Store, path: Path, *, kind: str, device_family: str, per_workload: int = 3
) -> int:
    """Write the best records of a device family; return how many.

    The lines stand in one order, whatever the store's is, so that two packs can be compared.

    Parameters
    ----------
    store : Store
        Where the records are.
    path : Path
        The pack; replaced as a whole.
    kind, device_family : str
        Kind and family of the devices.
    per_workload : int
        How many records of each workload, target and kernel family.

    Raises
    ------
    StoreError
        There is nothing to write; a pack that is there stays.
    """
    wanted = Filter(kind=kind, device_family=device_family, status="ok")
    records = [record for record in store.records(wanted) if record is not None]
    groups: dict[tuple[str, str, str], list[Record]] = {}
    for record in sorted(records, key=_rank):
        key = (record.workload, record.target.key, record.family)
        groups.setdefault(key, []).append(replace(record, session=""))
    workloads = {key: store.workload(key) for key in sorted({key for key, _, _ in groups})}
    chosen: list[Item] = [each for each in workloads.values() if each is not None]
    for key in sorted(groups):
        chosen.extend(groups[key][:per_workload] if workloads[key[0]] is not None else ())
    if not chosen:
        raise StoreError(_nothing(store, kind, device_family))
    path.parent.mkdir(parents=True, exist_ok=True)
    with (
        files.whole_file(path) as part,
        part.open("w", encoding="utf-8", newline="\n") as file,
    ):
        devices = sorted({each.device.name for each in chosen if isinstance(each, Record)})
        header = {"kind": kind, "device_family": device_family, "measured_on": devices}
        written = jsonl.write(chosen, file, header)
    return written.n_records


def _nothing(store: Store, kind: str, device_family: str) -> str:
    timed = [record for record in store.records(Filter(status="ok")) if record is not None]
    known = sorted({f"{each.device.family} ({each.device.kind})" for each in timed})
    others = f"it has those of {', '.join(known)}" if known else "it has none of any other"
    return (
        f"db pack: {store.name} has no timed record of {device_family} ({kind}); {others}: "
        f"name one of them, or run 'tvmfuse tune' first"
    )


def _rank(record: Record) -> tuple[float, str]:
    return record.median_us or float("inf"), record.uid

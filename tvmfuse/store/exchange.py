"""Move records between stores: directly, or by a text file of one checksummed item a line."""

from __future__ import annotations

import base64
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TextIO

from tvmfuse.errors import StoreError
from tvmfuse.store.lines import Line, read_lines
from tvmfuse.store.queries import Filter
from tvmfuse.store.records import Record, Session, Workload, digest
from tvmfuse.store.store import Store
from tvmfuse.store.versions import Versions

FORMAT = 2  # 1 had modules as they are, ten times as long
_BATCH = 500

Item = Workload | Session | Record
IsSame = Callable[[str, str], bool]


@dataclass(frozen=True)
class Written:
    """What went out.

    Parameters
    ----------
    n_records : int
        Records that were written.
    faults : tuple of str
        One sentence for all that was left out.
    """

    n_records: int = 0
    faults: tuple[str, ...] = ()


@dataclass(frozen=True)
class Taken:
    """What became of what was brought in.

    Parameters
    ----------
    n_new, n_known : int
        Records that were added, and that were there already.
    faults : tuple of str
        One sentence for all that was left out.
    """

    n_new: int = 0
    n_known: int = 0
    faults: tuple[str, ...] = ()


def items(store: Store, wanted: Filter | None = None) -> Iterator[Item | str]:
    """Yield records, each after the workload and the session that it names.

    Of a damaged store all that is whole comes out, and a sentence for what is not.
    """
    sessions = _sessions(store)
    seen: set[str] = set()
    n_damaged = 0
    try:
        for record in store.records(wanted):
            if record is None:
                n_damaged += 1
                continue
            if record.workload not in seen:
                seen.add(record.workload)
                yield _workload(store, record.workload)
            session = sessions.pop(record.session, None)
            if session is not None:
                yield session
            yield record
    except StoreError as error:
        yield str(error)
    if n_damaged:
        yield f"{n_damaged} records of {store.name} are damaged, and were left out"


def take(store: Store, given: Iterable[Item | str], is_same: IsSame | None = None) -> Taken:
    """Add items to a store; a sentence among them is a fault, and is handed on.

    Records that the store has are left as they are, so that taking twice adds nothing.

    Parameters
    ----------
    store : Store
        Takes them.
    given : iterable of items
        What :func:`items` or :func:`read` yields.
    is_same : callable, optional
        Says whether two modules are structurally equal, and is asked only of unequal texts.
        Without it equal keys are taken for equal workloads.

    Raises
    ------
    StoreError
        The store cannot be written to.
    """
    faults: list[str] = []
    sessions: set[str] = set()
    workloads: dict[str, str] = {}  # keys of one bucket are numbered anew in each store
    batch: list[Record] = []
    n_new = n_all = 0
    for item in given:
        match item:
            case str():
                faults.append(item)
            case Workload():
                workloads[item.key] = store.add_workload(item, is_same)
            case Session():
                store.add_session(item)
                sessions.add(item.uid)
            case Record() if item.workload not in workloads:
                faults.append(f"record {item.uid} was left out: its workload is missing")
            case Record():
                session = item.session if item.session in sessions else ""
                batch.append(replace(item, workload=workloads[item.workload], session=session))
                n_all += 1
        if len(batch) == _BATCH:
            n_new += store.commit(*batch)
            batch.clear()
    n_new += store.commit(*batch) if batch else 0
    return Taken(n_new, n_all - n_new, tuple(faults))


def merge(source: Store, into: Store, is_same: IsSame | None = None) -> Taken:
    """Add all that one store holds to another, see :func:`take`."""
    return take(into, items(source), is_same)


def write(
    given: Iterable[Item | str], file: TextIO, about: Mapping[str, Any] | None = None
) -> Written:
    """Write items as text; ``about`` tells of all of them, in the first line."""
    file.write(_line("tvmfuse", {"format": FORMAT, **(about or {})}))
    faults: list[str] = []
    n_records = 0
    for item in given:
        match item:
            case str():
                faults.append(item)
            case Workload():
                file.write(_line("workload", _packed(item)))
            case Session():
                file.write(_line("session", asdict(item)))
            case Record():
                file.write(_line("record", item.to_json()))
                n_records += 1
    return Written(n_records, tuple(faults))


def header(path: Path) -> Mapping[str, Any]:
    """Return what the first line of a text file says of all of it.

    Raises
    ------
    StoreError
        The file cannot be read, or is no text of :func:`write`.
    """
    kind, data = _checked(next(read_lines(path), Line(1)))
    if kind != "tvmfuse":
        raise StoreError(f"store: {path} is no export of tvmfuse: its first line is no header")
    if data["format"] > FORMAT:
        raise StoreError(f"store: {path} was written by a newer tvmfuse; upgrade tvmfuse")
    return dict(data)


def read(path: Path) -> Iterator[Item | str]:
    """Yield the items of a text file, and a sentence for each line that holds none.

    Raises
    ------
    StoreError
        The file cannot be read, or is no text of :func:`write`.
    """
    header(path)
    lines = read_lines(path)
    next(lines)
    for line in lines:
        kind, data = _checked(line)
        if line.fault:
            yield f"line {line.number} {line.fault}"
        elif kind not in _KINDS:
            yield f"line {line.number} was left out: it is damaged"
        else:
            yield _KINDS[kind](data)


def _sessions(store: Store) -> dict[str, Session]:
    try:
        return {session.uid: session for session in store.sessions()}
    except StoreError:  # records are worth more than their provenance
        return {}


def _workload(store: Store, key: str) -> Workload | str:
    try:
        found = store.workload(key)
    except StoreError as error:
        return str(error)
    return f"workload {key} is damaged; its records were left out" if found is None else found


def _packed(workload: Workload) -> dict[str, Any]:
    """Return a workload as data, its module compressed."""
    data = asdict(workload)
    compressed = zlib.compress(data.pop("module").encode(), 9)
    return {**data, "module_zlib": base64.b64encode(compressed).decode()}


def _unpacked(data: Mapping[str, Any]) -> Workload:
    if "module_zlib" not in data:  # of format 1
        return Workload(**data)
    rest = {name: value for name, value in data.items() if name != "module_zlib"}
    return Workload(module=zlib.decompress(base64.b64decode(data["module_zlib"])).decode(), **rest)


def _session(data: Mapping[str, Any]) -> Session:
    return Session(**{**data, "versions": Versions(**data["versions"])})


_KINDS: Mapping[str, Callable[[Any], Item]] = {
    "workload": _unpacked,
    "session": _session,
    "record": Record.from_json,
}


def _line(kind: str, data: Mapping[str, Any]) -> str:
    checked = {"kind": kind, "sum": digest(kind, dict(data)), "data": dict(data)}
    return json.dumps(checked, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def _checked(line: Line) -> tuple[str, Any]:
    """Return the kind and the data of a line, or "" where its checksum says otherwise."""
    try:
        kind, data = line.value["kind"], line.value["data"]
        return (kind, data) if digest(kind, data) == line.value["sum"] else ("", None)
    except (KeyError, TypeError, ValueError):
        return "", None

"""The text form of a store: one checksummed item a line, after a line that tells of all."""

from __future__ import annotations

import base64
import json
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TextIO

from tvmfuse.errors import StoreError
from tvmfuse.store.exchange import Item
from tvmfuse.store.lessons import CostModelFile, FusionMeasurement
from tvmfuse.store.lines import Line, read_lines
from tvmfuse.store.records import Record, Session, Workload, digest
from tvmfuse.store.rows import DAMAGED
from tvmfuse.store.versions import Versions

FORMAT = 3  # 1 had modules as they are, ten times as long; 2 no measured fusions


@dataclass(frozen=True)
class Written:
    """What went out.

    Parameters
    ----------
    n_records, n_measurements, n_models : int
        Records, measured fusions and cost models that were written.
    faults : tuple of str
        One sentence for all that was left out.
    """

    n_records: int = 0
    n_measurements: int = 0
    n_models: int = 0
    faults: tuple[str, ...] = ()


def write(
    given: Iterable[Item | str], file: TextIO, about: Mapping[str, Any] | None = None
) -> Written:
    """Write items as text; ``about`` tells of all of them, in the first line."""
    file.write(_line("tvmfuse", {"format": FORMAT, **(about or {})}))
    faults: list[str] = []
    counted: Counter[str] = Counter()
    for item in given:
        if isinstance(item, str):
            faults.append(item)
            continue
        kind, data = _data(item)
        file.write(_line(kind, data))
        counted[kind] += 1
    return Written(counted["record"], counted["measurement"], counted["model"], tuple(faults))


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
    version = data.get("format") if isinstance(data, dict) else None
    if not isinstance(version, int):
        raise StoreError(f"store: {path} is no export of tvmfuse: its first line names no format")
    if version > FORMAT:
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
            yield _item(kind, data, line.number)


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


def _data(item: Item) -> tuple[str, Mapping[str, Any]]:
    """Return the kind of an item, and the item as data."""
    match item:
        case Workload():
            return "workload", _packed(item)
        case Session():
            return "session", asdict(item)
        case Record():
            return "record", item.to_json()
        case FusionMeasurement():
            return "measurement", item.to_json()
        case CostModelFile():
            return "model", item.to_json()


def _item(kind: str, data: Any, number: int) -> Item | str:
    try:
        return _KINDS[kind](data)
    except (zlib.error, *DAMAGED) as error:  # its sum is right, but not what it says
        return f"line {number} was left out: it holds no {kind} ({error})"


def _session(data: Mapping[str, Any]) -> Session:
    return Session(**{**data, "versions": Versions(**data["versions"])})


_KINDS: Mapping[str, Callable[[Any], Item]] = {
    "workload": _unpacked,
    "session": _session,
    "record": Record.from_json,
    "measurement": FusionMeasurement.from_json,
    "model": CostModelFile.from_json,
}


def _line(kind: str, data: Mapping[str, Any]) -> str:
    checked = {"kind": kind, "sum": digest(kind, dict(data)), "data": dict(data)}
    return json.dumps(checked, sort_keys=True, separators=(",", ":"), allow_nan=False) + "\n"


def _checked(line: Line) -> tuple[str, Any]:
    """Return the kind and the data of a line, or "" where its checksum says otherwise."""
    try:
        kind, data = line.value["kind"], line.value["data"]
        is_whole = isinstance(kind, str) and digest(kind, data) == line.value["sum"]
        return (kind, data) if is_whole else ("", None)
    except (KeyError, TypeError, ValueError):
        return "", None

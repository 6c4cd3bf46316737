"""TVM's ``JSONDatabase`` files, in and out. They are for exchange: they do not bear two writers."""

from __future__ import annotations

import math
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tvmfuse._tvm import s_tir, tvm, tvm_ffi
from tvmfuse._tvm.failures import FAILURES, reason
from tvmfuse.errors import StoreError
from tvmfuse.store import keys
from tvmfuse.store.database import bind
from tvmfuse.store.devices import IRRELEVANT
from tvmfuse.store.exchange import Item, Taken, take
from tvmfuse.store.lines import Line, read_lines
from tvmfuse.store.queries import Filter
from tvmfuse.store.records import Device, Record, TargetKey, Workload, digest
from tvmfuse.store.store import Store
from tvmfuse.store.versions import Versions

WORKLOADS = "database_workload.json"
RECORDS = "database_tuning_record.json"

_US = 1e6
_FAILED_S = 1e9  # TVM writes 1e10 s for a trial that failed
_NAMING = ("kind", "mcpu", "arch", "num-cores")  # what makes a target another one

ms = s_tir.meta_schedule


@dataclass(frozen=True)
class _Known:
    """A workload of a file, its module, and the versions that its hash tells of."""

    workload: Workload
    module: Any
    versions: Versions


def import_folder(store: Store, folder: Path, *, device: Device, target: TargetKey) -> Taken:
    """Add the records of a folder of TVM to a store.

    The files do not say on which device they were measured, so it is the caller who does.

    Parameters
    ----------
    store : Store
        Takes the records.
    folder : Path
        Holds ``database_workload.json`` and ``database_tuning_record.json``.
    device : Device
        Where they were measured.
    target : TargetKey
        What they were compiled for; a record that names another CPU or architecture keeps its own.

    Returns
    -------
    Taken
        With one sentence for each line that was left out.

    Raises
    ------
    StoreError
        A file cannot be read, or the store cannot be written to.
    """
    return take(store, _items(store, folder, device, target))


def export_folder(store: Store, folder: Path, *, device: Device, target: TargetKey) -> int:
    """Write the replayable records of one device and target as TVM does; return how many.

    Raises
    ------
    StoreError
        The folder holds a database already: TVM would append to it.
    """
    if any((folder / name).exists() for name in (WORKLOADS, RECORDS)):
        raise StoreError(f"store: {folder} holds a database already; choose an empty folder")
    wanted = Filter(status="ok", has_trace=True, device=device.fingerprint, target=target.key)
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder, prefix=".tvmfuse-") as part:
        n_records = _write(store, part, wanted, target)
        for name in (WORKLOADS, RECORDS):  # the records last: they name workloads
            (Path(part) / name).replace(folder / name)
    return n_records


def _write(store: Store, folder: str, wanted: Filter, target: TargetKey) -> int:
    database = ms.database.JSONDatabase(work_dir=folder)
    modules: dict[str, Any] = {}
    n_records = 0
    for record in store.records(wanted):
        if record is None:
            continue
        if record.workload not in modules:
            workload = store.workload(record.workload)
            modules[record.workload] = workload and tvm.ir.load_json(workload.module)
        module = modules[record.workload]
        if module is not None:
            database.commit_workload(module)
            database.commit_tuning_record(bind(record, module, target))
            n_records += 1
    return n_records


def _items(store: Store, folder: Path, device: Device, target: TargetKey) -> Iterator[Item | str]:
    known: list[_Known | None] = []
    for line in read_lines(folder / WORKLOADS):
        found = _workload(line, store)
        name = f"{WORKLOADS}, line {line.number}"
        if isinstance(found, str):
            yield f"{name} {found}"
        else:
            yield found.workload
        if "glued" not in line.fault:
            known.append(None if isinstance(found, str) else found)
    for line in read_lines(folder / RECORDS):
        try:
            yield _record(line, known, device, target)
        except StoreError as error:
            yield f"{RECORDS}, line {line.number} {error}"


def _workload(line: Line, store: Store) -> _Known | str:
    if line.fault:
        return line.fault
    try:
        written, _ = line.value
        module = ms.database.Workload.from_json(line.value).mod
        workload = keys.workload(keys.entry(module))
        same_tvm = int(written) == _unsigned(tvm_ffi.structural_hash(module))
    except (StoreError, *FAILURES) as error:
        return f"was left out: it is no workload ({reason(error)})"
    key = store.add_workload(workload, keys.is_same_module)
    versions = Versions.installed()
    # Another hash is of another TVM, or of a damaged line: such records are verified before use.
    return _Known(
        replace(workload, key=key),
        module,
        versions if same_tvm else replace(versions, tvm="unknown"),
    )


def _record(line: Line, known: list[_Known | None], device: Device, target: TargetKey) -> Record:
    if line.fault:
        raise StoreError(line.fault)
    try:
        index, (trace, seconds, its_target, arguments) = line.value
        of = known[index] if 0 <= index < len(known) else None
    except (TypeError, ValueError) as error:
        raise StoreError(f"was left out: it is no record ({error})") from error
    if of is None:
        raise StoreError(
            f"was left out: it names workload {index}, which is none of the whole ones"
        )
    own = _own_target(its_target, target)
    if own.kind != device.kind:
        raise StoreError(f"was left out: it is of {own.kind}, and the device of {device.kind}")
    expected = [
        each.as_json() for each in ms.arg_info.ArgInfo.from_prim_func(keys.entry(of.module))
    ]
    if arguments != expected:
        raise StoreError(f"was left out: its arguments {arguments} are not those of its workload")
    common = {"device": device, "target": own, "trace": trace, "versions": of.versions}
    times = [_number(value) for value in seconds or ()]
    if any(time >= _FAILED_S for time in times):
        text = "imported: TVM keeps no reason"
        return _named(Record(of.workload.key, status="run_error", reason=text, **common))
    times_us = tuple(time * _US for time in times)
    if not times_us or not all(math.isfinite(time) and time > 0 for time in times_us):
        raise StoreError(f"was left out: its run times are {seconds}")
    _replay(trace, line.value[1], of.module)
    return _named(Record(of.workload.key, status="ok", times_us=times_us, **common))


def _named(record: Record) -> Record:
    """Name a record by what its file says, so that taking a file twice adds nothing."""
    said = {**record.to_json(), "uid": "", "created_at": "", "versions": {}}
    return replace(record, uid=digest(said)[:32])


def _replay(trace: Any, data: Any, module: Any) -> None:
    """Raise unless a trace can be applied to its workload and does something to it."""
    try:
        record = ms.database.TuningRecord.from_json(data, ms.database.Workload(module))
        schedule = s_tir.Schedule(module)
        record.trace.apply_to_schedule(schedule, remove_postproc=False)
    except FAILURES as error:
        raise StoreError(f"was left out: it cannot be replayed ({reason(error)})") from error
    if tvm_ffi.structural_equal(schedule.mod, module):
        raise StoreError("was left out: its trace does nothing")


def _own_target(attrs: Any, given: TargetKey) -> TargetKey:
    if not isinstance(attrs, Mapping) or "kind" not in attrs:
        raise StoreError("was left out: it names no target")
    is_given = all(
        attrs.get(name, given.attrs.get(name)) == given.attrs.get(name) for name in _NAMING
    )
    kept = {name: value for name, value in attrs.items() if name not in IRRELEVANT}
    return given if is_given else TargetKey(kept)


def _number(value: Any) -> float:
    return float(value) if isinstance(value, int | float) else math.nan


def _unsigned(number: int) -> int:
    return number % 2**64

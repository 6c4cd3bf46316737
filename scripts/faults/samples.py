"""Workloads and records that can be told apart, and the command line of a child process."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from tvmfuse.store import Device, Record, Store, TargetKey, Workload, open_store

ROOT = Path(__file__).parents[2]
DEVICE = Device("llvm", "x86-64-v3", "a CPU", {"cores": 2})
TARGET = TargetKey({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
PLAN = [{"op": "split", "factors": [None, 4]}] * 10  # makes a record as long as a usual one


def workload(who: int) -> Workload:
    """Return the workload of one writer."""
    return Workload(f"{who:064x}", f'{{"who": {who}}}' * 200, "0.27.0.post1", f"writer {who}")


def record(who: int, trial: int) -> Record:
    """Return a record of a writer; its times tell whose it is."""
    times_us = (who + 1 + trial * 1e-6,)
    return Record(
        workload(who).key, DEVICE, TARGET, "ok", times_us, decisions={"rows": 6}, trace=PLAN
    )


def is_own(record: Record) -> bool:
    """Whether a record hangs on the workload of the writer that made it."""
    return int(record.workload, 16) == int(record.times_us[0]) - 1


def fill(path: Path, n_workloads: int, n_records: int) -> dict[str, str]:
    """Make a store; return the checksums of its records by name."""
    checksums = {}
    with open_store(path) as store:
        for who in range(n_workloads):
            store.add_workload(workload(who))
            records = [record(who, trial) for trial in range(n_records)]
            store.commit(*records)
            checksums |= {each.uid: each.checksum for each in records}
    return checksums


def whole(store: Store) -> list[Record]:
    """Return the records of a store that are whole."""
    return [each for each in store.records() if each is not None]


def child(module: str, *arguments: object) -> list[str]:
    """Return the command that runs a module of this folder."""
    return [sys.executable, "-m", f"faults.{module}", *map(str, arguments)]


def environment() -> dict[str, str]:
    """Return the variables under which a child finds this folder and tvmfuse."""
    return {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'scripts'}"}

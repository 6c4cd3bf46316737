"""Measure the tuning store with many records and with many writers.

    PYTHONPATH=.:scripts python scripts/bench/store_figures.py [--filled FILE]

Fills a SQLite store with made-up records (minutes; ``--filled`` keeps it for another time), times
look-ups, counts what opening it reads and prints how SQLite finds the best record. Then 8
processes commit to one new store, by SQLite and by PostgreSQL. Writes ``results/store.json`` and
``.md``, which README shows; exits with 1 where a goal is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from faults import postgres, trials

from tvmfuse.host import detect
from tvmfuse.store import (
    Device,
    Query,
    Record,
    Store,
    TargetKey,
    Workload,
    open_store,
    rows,
    schema,
)
from tvmfuse.store.queries import ranked

RESULTS = Path(__file__).parent / "results"
LONGEST_LOOK_UP_MS = 2.0
MOST_READ_BYTES = 10e6
_BATCH = 20_000
_WORKLOADS = 2_000
_DEVICES = tuple(Device("llvm", "x86-64-v3", f"CPU {n}", {"cores": n + 1}) for n in range(5))
_TARGET = TargetKey({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
_DECISIONS = {"rows": 6, "columns": 16, "unroll": 4, "parallel": "rows", "depth": 256}


def key(number: int) -> str:
    """Return the key of a workload; keys are hashes, so neighbours are far apart."""
    return f"{random.Random(number).getrandbits(256):064x}"


def fill(store: Store, n_records: int, seed: int = 0) -> None:
    """Add records, in transactions of many."""
    for number in range(_WORKLOADS):
        store.add_workload(Workload(key(number), "{}", "0.27.0.post1"))
    chance = random.Random(seed)
    first = [Record(key(0), device, _TARGET, "crash") for device in _DEVICES]
    store.commit(*first)
    for start in range(0, n_records, _BATCH):
        batch = list(_values(chance, min(_BATCH, n_records - start)))
        store.backend.write(lambda c, batch=batch: c.execute(sa.insert(schema.records), batch))
        print(f"\r  {start + len(batch):,} records", end="", file=sys.stderr)
    print(file=sys.stderr)


def _values(chance: random.Random, n_records: int) -> Iterator[Mapping[str, Any]]:
    """Yield rows as ``commit`` would write them; by itself it does a few thousand a second."""
    for _ in range(n_records):
        number, at = chance.randrange(_WORKLOADS), chance.randrange(len(_DEVICES))
        status = "ok" if chance.random() < 0.9 else "timeout"
        times = (chance.lognormvariate(3, 1), chance.lognormvariate(3, 1)) if status == "ok" else ()
        record = Record(
            key(number), _DEVICES[at], _TARGET, status, times, family="gemm", decisions=_DECISIONS
        )
        ids = {"workload_id": number + 1, "device_id": at + 1, "target_id": 1, "session_id": None}
        yield {**rows.record_values(record), **ids}


def look_ups(store: Store, *, n_look_ups: int = 500, seed: int = 1) -> list[float]:
    """Return how long the best record of a random workload took to find, in ms."""
    chance = random.Random(seed)
    times_ms = []
    for _ in range(n_look_ups):
        query = _query(chance.randrange(_WORKLOADS), chance.randrange(len(_DEVICES)))
        began = time.perf_counter()
        store.best(query)
        times_ms.append((time.perf_counter() - began) * 1e3)
    return times_ms


def query_plan(store: Store) -> list[str]:
    """Return how SQLite finds the best record."""
    statement = ranked(_query(0, 0), any_of_family=False, limit=1)
    dialect = store.backend.engine.dialect
    text = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))

    def explain(connection: sa.Connection) -> list[str]:
        return [row[3] for row in connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {text}")]

    return store.backend.read(explain)


def read_bytes() -> int:
    """Return how much this process has read so far, in bytes, caches of the system included."""
    fields = (line.split(": ") for line in Path("/proc/self/io").read_text().splitlines())
    return int(dict(fields)["rchar"])


def _query(number: int, device: int) -> Query:
    return Query(key(number), _DEVICES[device], _TARGET, family="gemm")


def measure(path: Path, n_records: int) -> dict[str, Any]:
    """Return the figures of a store, which is filled where it is not there yet."""
    if not path.exists():
        with open_store(path) as store:
            fill(store, n_records)
    with open_store(path) as store:  # loads what Python loads late
        store.best(_query(0, 0))
    before, began = read_bytes(), time.perf_counter()
    with open_store(path) as store:
        opening_ms = (time.perf_counter() - began) * 1e3
        read_by_opening = read_bytes() - before
        store.best(_query(1, 1))
        read_by_first = read_bytes() - before
        times_ms = sorted(look_ups(store))
        plan = query_plan(store)
        ((number, _),) = store.count()
    return {
        "records": number,
        "file_mib": round(path.stat().st_size / 2**20),
        "opening_ms": round(opening_ms, 2),
        "opening_reads_bytes": read_by_opening,
        "opening_and_first_look_up_read_bytes": read_by_first,
        "look_up_median_ms": round(statistics.median(times_ms), 2),
        "look_up_99_of_100_ms": round(times_ms[int(len(times_ms) * 0.99)], 2),
        "query_plan": plan,
    }


def writers(folder: Path) -> dict[str, Mapping[str, object]]:
    """Return what 8 processes that commit 500 times each came to, by back end."""
    sizes = {"n_processes": 8, "n_commits": 500}
    found = {"SQLite": trials.many_writers(str(folder / "shared.db"), **sizes).figures}
    programs = postgres.find_programs()
    if programs is None:
        print(postgres.MISSING, file=sys.stderr)
        return found
    with postgres.running(programs) as server:
        return {**found, "PostgreSQL": trials.many_writers(server.new_database(), **sizes).figures}


def table(figures: Mapping[str, Any]) -> str:
    """Return the figures for README."""
    rows = [
        ("records", f"{figures['records']:,}"),
        ("size of the file", f"{figures['file_mib']} MiB"),
        (
            "best record of a kernel, of 500 random ones",
            f"{figures['look_up_median_ms']} ms, 99 of 100 within "
            f"{figures['look_up_99_of_100_ms']} ms",
        ),
        (
            "opening, and what it reads with the first look-up",
            f"{figures['opening_ms']} ms, "
            f"{figures['opening_and_first_look_up_read_bytes'] / 1e6:.2f} MB",
        ),
    ]
    for name, found in figures["writers"].items():
        said = (
            f"{found['commits a second']} commits a second, longest wait {found['longest wait']}, "
            f"{found['lost']} lost, {found['on a wrong workload']} on a wrong workload"
        )
        rows.append((f"{found['commits']:,} commits by 8 processes, {name}", said))
    lines = [f"{figures['date']}, {figures['machine']}.", "", "| what | figure |", "| --- | --- |"]
    lines += [f"| {what} | {figure} |" for what, figure in rows]
    plan = "\n".join(figures["query_plan"])
    return "\n".join([*lines, "", "How SQLite finds it:", "", f"```text\n{plan}\n```", ""])


def main() -> int:
    """Measure, and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument(
        "--filled", type=Path, help="the store; made and kept where it is not there"
    )
    parser.add_argument("--into", type=Path, default=RESULTS, help="where to write the figures")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        filled = given.filled or Path(folder) / "tvmfuse.db"
        figures = {
            "date": time.strftime("%Y-%m-%d"),
            "machine": f"{detect().model}, {os.cpu_count()} cores, load {os.getloadavg()[0]:.1f}",
            **measure(filled, given.records),
            "writers": writers(Path(folder)),
        }
    (given.into / "store.json").write_text(json.dumps(figures, indent=1) + "\n")
    (given.into / "store.md").write_text(table(figures))
    print(table(figures))
    is_quick = figures["look_up_99_of_100_ms"] < LONGEST_LOOK_UP_MS
    is_small = figures["opening_and_first_look_up_read_bytes"] < MOST_READ_BYTES
    return 0 if is_quick and is_small else 1


if __name__ == "__main__":
    sys.exit(main())

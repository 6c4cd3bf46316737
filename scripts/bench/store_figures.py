"""Measure the tuning store with many records: its size, its look-ups, what opening it reads.

    python scripts/bench/store_figures.py [--records 1000000] [--json FILE]

Fills a SQLite store with made-up records, and prints how SQLite finds the best one.
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
from tvmfuse.store.queries import ranked_statement

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
    statement = ranked_statement(_query(0, 0), any_of_family=False).limit(1)
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
    """Fill a store and return its figures."""
    began = time.monotonic()
    with open_store(path) as store:
        fill(store, n_records)
    seconds = time.monotonic() - began
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
    return {
        "records": n_records,
        "file_mib": round(path.stat().st_size / 2**20),
        "filled_in_s": round(seconds),
        "opening_ms": round(opening_ms, 2),
        "opening_reads_bytes": read_by_opening,
        "opening_and_first_look_up_read_bytes": read_by_first,
        "look_up_median_ms": round(statistics.median(times_ms), 2),
        "look_up_99_of_100_ms": round(times_ms[int(len(times_ms) * 0.99)], 2),
        "query_plan": plan,
        "load": round(os.getloadavg()[0], 1),
        "cores": os.cpu_count(),
    }


def main() -> int:
    """Print the figures; exit with 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--records", type=int, default=1_000_000)
    parser.add_argument("--json", type=Path, help="write the figures there too")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        figures = measure(Path(folder) / "tvmfuse.db", given.records)
    print(json.dumps(figures, indent=1))
    if given.json:
        given.json.write_text(json.dumps(figures, indent=1) + "\n")
    is_quick = figures["look_up_median_ms"] < LONGEST_LOOK_UP_MS
    is_small = figures["opening_and_first_look_up_read_bytes"] < MOST_READ_BYTES
    return 0 if is_quick and is_small else 1


if __name__ == "__main__":
    sys.exit(main())

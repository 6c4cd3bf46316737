"""Stores on both back ends, and small things to put into them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from faults import postgres

from tvmfuse.plan import Candidate, Group, OpGraph, OpNode, RunTime, TensorInfo
from tvmfuse.store import Device, Record, Store, TargetKey, Workload, open_store

CPU = Device("llvm", "x86-64-v3", "a CPU", {"cores": 2})
OTHER_CPU = Device("llvm", "x86-64-v3", "another CPU", {"cores": 8})
OLD_CPU = Device("llvm", "x86-64-v2", "an old CPU", {"cores": 2})
GPU = Device("cuda", "sm_90", "a GPU")
LLVM = TargetKey({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 2})
CUDA = TargetKey({"kind": "cuda", "arch": "sm_90"})
TENSOR = TensorInfo(("n", 4), "float32")
GRAPH = OpGraph(
    (TENSOR, TENSOR), (OpNode("relax.exp", "elementwise", (0,), (1,), 9, 3),), (0,), (1,)
)
GROUP = Group(Candidate("chain", "elementwise", "main", (3,), GRAPH), RunTime(1.5, 2.5))


def workload(number: int = 0) -> Workload:
    return Workload(f"{number:064x}", f'{{"number": {number}}}', "0.27.0.post1", f"no. {number}")


def ok(key: str, *times_us: float, **fields: object) -> Record:
    given = {"device": CPU, "target": LLVM, "family": "gemm", "decisions": {"rows": 6}, **fields}
    return Record(workload=key, status="ok", times_us=times_us or (10.0,), **given)


@pytest.fixture(scope="session")
def server() -> Iterator[postgres.Server]:
    """A PostgreSQL server of this test run."""
    programs = postgres.find_programs()
    if programs is None:
        if os.environ.get("CI") == "true":
            pytest.fail(postgres.MISSING)
        pytest.skip(postgres.MISSING)
    with postgres.running(programs) as server:
        yield server


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """Where a store may be made: a file that is not there, or an empty database."""
    if request.param == "sqlite":
        return str(tmp_path / "tvmfuse.db")
    return request.getfixturevalue("server").emptied_database()


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    with open_store(database) as store:
        yield store


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A SQLite store with 3 workloads of 20 records each."""
    path = tmp_path / "filled.db"
    with open_store(path) as store:
        for number in range(3):
            key = store.add_workload(workload(number))
            store.commit(*(ok(key, 10.0 + trial) for trial in range(20)))
    return path

"""Files of TVM's JSONDatabase, whole and in pieces."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.store.kernels import scale_shift
from tests.store.test_database import CPU, trial, view
from tvmfuse._tvm import s_tir
from tvmfuse.errors import StoreError
from tvmfuse.store import Store, keys, open_store
from tvmfuse.store.devices import device_of, target_key
from tvmfuse.store.exchange import Taken
from tvmfuse.store.tvm_json import RECORDS, WORKLOADS, export_folder, import_folder

ms = s_tir.meta_schedule
PLACE = {"device": device_of(CPU), "target": target_key(CPU)}


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "tvmfuse.db") as store:
        yield store


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """What TVM writes: one workload and three records of it."""
    folder = tmp_path / "work_dir"
    folder.mkdir()
    database = ms.database.JSONDatabase(work_dir=str(folder))
    database.commit_workload(keys.normalise(scale_shift()))
    for rows, seconds in ((2, 3e-3), (4, 1e-3), (8, 2e-3)):
        database.commit_tuning_record(trial(scale_shift(), rows, seconds))
    return folder


def test_an_export_is_read_by_tvm_and_by_us(
    store: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for rows, seconds in ((2, 3e-3), (4, 1e-3)):
        view(store).commit_tuning_record(trial(scale_shift(), rows, seconds))
    out = tmp_path / "out"
    assert export_folder(store, out, **PLACE) == 2
    theirs = ms.database.JSONDatabase(work_dir=str(out))
    assert len(theirs) == 2
    best = theirs.query_tuning_record(keys.normalise(scale_shift()), CPU.tvm(), "main")
    assert float(best.run_secs[0]) == pytest.approx(1e-3)
    with open_store(tmp_path / "other.db") as other:
        assert import_folder(other, out, **PLACE) == Taken(2)
        monkeypatch.setattr("tvmfuse.store.versions.__version__", "of later")
        assert import_folder(other, out, **PLACE) == Taken(0, 2)
        assert [r.median_us for r in other.records()] == pytest.approx([3000, 1000])
    with pytest.raises(StoreError, match="holds a database already"):
        export_folder(store, out, **PLACE)


Lines = list[str]
Damage = Callable[[Lines], Lines]


def _with(line: str, at: list[int], value: object) -> str:
    data = json.loads(line)
    part = data
    for step in at[:-1]:
        part = part[step]
    part[at[-1]] = value
    return json.dumps(data)


DAMAGE: dict[str, tuple[Damage, int, str]] = {
    "whole": (lambda r: r, 3, ""),
    "torn": (lambda r: [*r[:2], r[2][: len(r[2]) // 2]], 2, "line 3 is torn"),
    "blank": (lambda r: [r[0], "", *r[1:]], 3, "line 2 is blank"),
    "glued": (lambda r: [r[0], r[1] + r[2]], 3, "line 2 holds 2 values glued together"),
    "garbage": (lambda r: [r[0], "{oops", *r[1:]], 3, "line 2 is torn"),
    "zeros": (lambda r: [*r, "\0" * 64], 3, "line 4 is blank"),
    "carriage returns": (lambda r: [f"{line}\r" for line in r], 3, ""),
    "no such workload": (lambda r: [_with(r[0], [0], 7), *r[1:]], 2, "line 1 was left out"),
    "negative workload": (lambda r: [_with(r[0], [0], -1), *r[1:]], 2, "names workload -1"),
    "NaN": (lambda r: [_with(r[0], [1, 1], [float("nan")]), *r[1:]], 2, "its run times are"),
    "no times": (lambda r: [_with(r[0], [1, 1], []), *r[1:]], 2, "its run times are"),
    "does nothing": (lambda r: [_with(r[0], [1, 0], [[], []]), *r[1:]], 2, "does nothing"),
    "unknown instruction": (
        lambda r: [_with(r[0], [1, 0], [[["NoSuch", [], [], []]], []]), *r[1:]],
        2,
        "cannot be replayed",
    ),
    "other arguments": (
        lambda r: [_with(r[0], [1, 3], [["TENSOR", "float32", [8, 4]]]), *r[1:]],
        2,
        "are not those of its workload",
    ),
    "other kind": (
        lambda r: [_with(r[0], [1, 2], {"kind": "cuda", "arch": "sm_80"}), *r[1:]],
        2,
        "it is of cuda, and the device of llvm",
    ),
    "a number": (lambda r: ["17", *r], 3, "line 1 was left out: it is no record"),
}


@pytest.mark.parametrize("name", DAMAGE)
def test_whole_records_are_kept_and_the_others_named(store: Store, folder: Path, name: str) -> None:
    damage, n_kept, said = DAMAGE[name]
    path = folder / RECORDS
    path.write_text("\n".join(damage(path.read_text().splitlines())), newline="")
    taken = import_folder(store, folder, **PLACE)
    assert taken.n_new == n_kept
    assert bool(taken.faults) == bool(said)
    assert said in " ".join(taken.faults)
    assert len(view(store)) == n_kept


def test_a_failed_trial_stays_a_failure(store: Store, folder: Path) -> None:
    path = folder / RECORDS
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([_with(first, [1, 1], [1e10]), *rest]))
    assert import_folder(store, folder, **PLACE).faults == ()
    assert sorted(record.status for record in store.records()) == ["ok", "ok", "run_error"]


def test_a_workload_of_another_hash_is_verified_before_use(store: Store, folder: Path) -> None:
    path = folder / WORKLOADS
    digest, module = json.loads(path.read_text())
    path.write_text(json.dumps([str(int(digest) ^ 1), module]))
    assert import_folder(store, folder, **PLACE).n_new == 3
    assert {record.versions.tvm for record in store.records()} == {"unknown"}
    assert view(store).get_top_k(ms.database.Workload(keys.normalise(scale_shift())), 3) == []


def test_records_of_a_torn_workload_are_left_out(store: Store, folder: Path) -> None:
    path = folder / WORKLOADS
    path.write_text(path.read_text()[:100])
    taken = import_folder(store, folder, **PLACE)
    assert (taken.n_new, len(taken.faults)) == (0, 4)


def test_another_cpu_keeps_its_own_target(store: Store, folder: Path) -> None:
    old = {**target_key(CPU).attrs, "mcpu": "x86-64-v2"}
    path = folder / RECORDS
    first, *rest = path.read_text().splitlines()
    path.write_text("\n".join([_with(first, [1, 2], old), *rest]))
    import_folder(store, folder, **PLACE)
    assert len(view(store)) == 2
    assert {record.target.attrs["mcpu"] for record in store.records()} == {"x86-64-v2", "x86-64-v3"}

"""Export, import, merge, packs, pruning and checking."""

from __future__ import annotations

import json
import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from tests.store.conftest import CPU, CUDA, GPU, GROUP, LLVM, OTHER_CPU, ok, workload
from tvmfuse.errors import StoreError
from tvmfuse.store import (
    Query,
    Record,
    Session,
    Store,
    exchange,
    find,
    jsonl,
    learning,
    maintenance,
    open_store,
    packs,
    schema,
)
from tvmfuse.store.lessons import CostModelFile, FusionMeasurement
from tvmfuse.store.records import digest


@pytest.fixture
def filled(store: Store) -> Store:
    fill(store)
    return store


def fill(store: Store) -> None:
    with store.session(Session("tune", "host")) as session:
        for number in range(2):
            key = store.add_workload(workload(number))
            store.commit(ok(key, 3.0 + number, session=session.uid), ok(key, 9.0, family="conv"))
            store.commit(Record(key, CPU, LLVM, "timeout", reason="10 s", session=session.uid))
    with store.session(Session("tune --learn", "host", settings={"model": "m"})) as session:
        timed = FusionMeasurement(GROUP, CPU, LLVM, session.uid, "tuned", 0.25)
        learning.add_measurements(store, [timed, FusionMeasurement(GROUP, OTHER_CPU, LLVM)])
    learning.add_cost_model(store, CostModelFile("trees", 1, CPU, '{"a": 1}', 2, {"error": 0.1}))


def everything(store: Store) -> tuple[list[object], ...]:
    return (
        list(store.records()),
        store.workloads(),
        store.sessions(),
        list(learning.measurements(store)),
        list(learning.cost_models(store)),
    )


def exported(store: Store, path: Path) -> list[str]:
    with path.open("w") as file:
        assert jsonl.write(exchange.items(store), file) == jsonl.Written(6, 2, 1)
    return path.read_text().splitlines(keepends=True)


def test_an_export_taken_into_an_empty_store_is_the_same_store(
    filled: Store, tmp_path: Path
) -> None:
    exported(filled, path := tmp_path / "all.jsonl")
    with open_store(tmp_path / "other.db") as other:
        assert exchange.take(other, jsonl.read(path)) == exchange.Taken(6, 0, (), 2, 1)
        assert exchange.take(other, jsonl.read(path)) == exchange.Taken(0, 6)
        assert everything(other) == everything(filled)


def test_what_a_store_takes_is_what_another_gave(store: Store, tmp_path: Path) -> None:
    with open_store(tmp_path / "other.db") as other:
        fill(other)
        assert exchange.merge(other, store) == exchange.Taken(6, 0, (), 2, 1)
        assert exchange.merge(other, store) == exchange.Taken(0, 6)
        assert everything(store) == everything(other)


def test_damaged_lessons_are_left_out_and_named(filled: Store, tmp_path: Path) -> None:
    for table, change in (
        (schema.fusion_measurements, {"candidate": "{}"}),
        (schema.cost_models, {"metrics": "{}"}),
    ):
        damage = sa.update(table).where(table.c.id == 1).values(change)
        filled.backend.write(lambda connection, damage=damage: connection.execute(damage))
    with open_store(tmp_path / "other.db") as other:
        taken = exchange.merge(filled, other)
    assert (taken.n_new, taken.n_measurements, taken.n_models) == (6, 1, 0)
    assert [fault.partition(" of ")[0] for fault in taken.faults] == [
        "1 measured fusions",
        "1 cost models",
    ]
    assert maintenance.check(filled).faults == (
        "1 measured fusions are damaged",
        "1 cost models are damaged",
    )


def test_two_stores_are_merged_without_repeats(filled: Store, tmp_path: Path) -> None:
    with open_store(tmp_path / "other.db") as other:
        key = other.add_workload(workload(1))
        other.commit(ok(key, 1.0, device=OTHER_CPU))
        assert exchange.merge(other, filled) == exchange.Taken(1)
        assert exchange.merge(filled, other) == exchange.Taken(6, 1, (), 2, 1)
        assert len(list(other.records())) == len(list(filled.records())) == 7


@pytest.mark.parametrize(
    ("damage", "n_new", "said"),
    [
        (lambda line: line[: len(line) // 2] + "\n", 5, "is torn"),
        (lambda line: "\n" + line, 6, "is blank"),
        (lambda line: line.replace('"family":"conv"', '"family":"gemm"'), 5, "is damaged"),
        (lambda line: line.rstrip("\n"), 6, "glued"),
        (lambda line: line + '{"kind":"pickle"}\n', 6, "is damaged"),
    ],
)
def test_a_damaged_line_is_left_out_by_number(
    filled: Store, tmp_path: Path, damage: object, n_new: int, said: str
) -> None:
    lines = exported(filled, path := tmp_path / "all.jsonl")
    at = next(n for n, line in enumerate(lines) if '"family":"conv"' in line)
    path.write_text("".join([*lines[:at], damage(lines[at]), *lines[at + 1 :]]))
    with open_store(tmp_path / "other.db") as other:
        taken = exchange.take(other, jsonl.read(path))
    assert taken.n_new == n_new
    (fault,) = taken.faults
    assert fault.startswith("line ")
    assert said in fault


@pytest.mark.parametrize(
    "first", ["hello", {"format": None}, {"format": "3"}, ["format"]], ids=repr
)
def test_a_file_that_is_no_export_is_refused(tmp_path: Path, first: object) -> None:
    path = tmp_path / "x.jsonl"
    line = {"kind": "tvmfuse", "data": first, "sum": digest("tvmfuse", first)}
    path.write_text(f"{first if isinstance(first, str) else json.dumps(line)}\n")
    with pytest.raises(StoreError, match="is no export of tvmfuse"):
        list(jsonl.read(path))


def test_a_pack_is_the_same_whatever_the_order_of_the_store(filled: Store, tmp_path: Path) -> None:
    options = {"kind": "llvm", "device_family": "x86-64-v3"}
    first, second = tmp_path / "first.jsonl", tmp_path / "second.jsonl"
    assert packs.write_pack(filled, first, **options) == 4
    with open_store(tmp_path / "other.db") as other:
        given = list(exchange.items(filled))
        others = [each for each in given if not isinstance(each, Record)]
        records = [each for each in given if isinstance(each, Record)]
        exchange.take(other, [*reversed(others), *reversed(records)])
        packs.write_pack(other, second, **options)
    assert first.read_bytes() == second.read_bytes()


def test_a_pack_holds_the_best_of_its_family_only(filled: Store, tmp_path: Path) -> None:
    key = workload().key
    filled.commit(ok(key, 1.0, device=GPU, target=CUDA), ok(key, 2.0), ok(key, 2.5))
    path = tmp_path / "p.jsonl"
    packs.write_pack(filled, path, kind="llvm", device_family="x86-64-v3", per_workload=1)
    (pack,) = packs.load_packs([tmp_path])
    assert [(r.family, r.median_us) for r in pack.by_workload[key]] == [("gemm", 2), ("conv", 9)]


def test_the_store_comes_before_the_pack(filled: Store, tmp_path: Path) -> None:
    packs.write_pack(filled, tmp_path / "p.jsonl", kind="llvm", device_family="x86-64-v3")
    sources = [open_store(tmp_path / "mine.db"), *packs.load_packs([tmp_path])]
    query = Query(workload().key, CPU, LLVM)
    assert find(sources, query)[0].record.median_us == 3
    sources[0].commit(ok(sources[0].add_workload(workload()), 5.0))
    assert find(sources, query)[0].record.median_us == 5
    sources[0].close()


def test_pruning_keeps_the_best_and_the_failures(filled: Store) -> None:
    key = workload().key
    filled.commit(*(ok(key, 10.0 + n) for n in range(5)), ok(key, 99.0, device=OTHER_CPU))
    filled.commit(replace(ok(key, 50.0), status="measured"))
    assert maintenance.prune(filled, keep=2) == 4
    kept = sorted(r.median_us or 0 for r in filled.records() if r.workload == key)
    assert kept == [0, 3, 9, 10, 50, 99]
    assert maintenance.prune(filled, keep=2, drop_failures=True) == 2


def test_a_whole_store_is_healthy(filled: Store) -> None:
    assert maintenance.check(filled) == maintenance.Health(6, 2, 0, (), 2, 1)


@pytest.mark.parametrize(
    ("table", "change"),
    [
        ("records", "times_us = '[0.001]'"),
        ("records", "median_us = 0.001"),
        ("records", "decisions = '{\"rows\":99}'"),
        ("records", "decisions = '{'"),
        ("records", "workload_id = 3 - workload_id"),
        ("records", "status = 'ok', times_us = '[]'"),
        ("devices", "details = '{\"cores\":3}'"),
        ("targets", 'attrs = \'{"kind":"llvm"}\''),
        ("workloads", "key = 'a' || key"),
    ],
)
def test_a_changed_value_is_never_taken_for_a_record(file: Path, table: str, change: str) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute(f"UPDATE {table} SET {change}")
    with open_store(file) as store:
        assert store.best(Query(workload().key, CPU, LLVM)) is None
        assert set(store.records()) == {None}
        health = maintenance.check(store)
    assert (health.n_damaged, health.is_healthy) == (60, False)


def test_what_is_whole_of_a_damaged_file_is_saved(file: Path, tmp_path: Path) -> None:
    content = bytearray(file.read_bytes())
    pages = [slice(at, at + 4096) for at in range(0, len(content), 4096)]
    # 13 begins a leaf of a table.
    leaves = [page for page in pages if content[page][0] == 13 and b'{"rows":6}' in content[page]]
    middle = leaves[len(leaves) // 2]
    content[middle] = bytes(4096)
    file.write_bytes(content)
    with open_store(file) as store, (tmp_path / "saved.jsonl").open("w") as saved:
        written = jsonl.write(exchange.items(store), saved)
        assert not maintenance.check(store).is_healthy
    assert 30 < written.n_records < 60
    assert "damaged" in written.faults[-1]
    with open_store(tmp_path / "new.db") as store:
        taken = exchange.take(store, jsonl.read(tmp_path / "saved.jsonl"))
        assert taken.n_new == written.n_records


def test_damage_of_the_best_leaves_the_next(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE records SET reason = 'x' WHERE median_us = 10")
    with open_store(file) as store:
        assert store.best(Query(workload().key, CPU, LLVM)).record.median_us == 11


def test_a_changed_module_is_never_taken_for_a_workload(file: Path) -> None:
    with sqlite3.connect(file) as connection:
        connection.execute("UPDATE workloads SET module = x'00' WHERE id = 1")
    with open_store(file) as store:
        assert store.workload(workload().key) is None
        assert len(store.workloads()) == 2
        assert maintenance.check(store).faults == ("1 workloads are damaged",)

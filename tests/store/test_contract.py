"""What every store does, whatever its database."""

from __future__ import annotations

import shlex
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.store.conftest import CPU, CUDA, GPU, LLVM, OLD_CPU, OTHER_CPU, ok, workload
from tvmfuse.errors import StoreError
from tvmfuse.store import Filter, Query, Record, Session, Store, Versions, open_store, schema
from tvmfuse.store.records import new_uid


@pytest.fixture
def key(store: Store) -> str:
    return store.add_workload(workload())


def test_a_record_comes_back_as_it_was(store: Store, key: str) -> None:
    with store.session(Session("tune m.onnx", "host", 7, {"trials": 3})) as session:
        record = ok(key, 3.0, 0.1 + 0.2, 5.0, session=session.uid, trace=[["Split", [1, None]], []])
        assert store.commit(record) == 1
    assert list(store.records()) == [record]
    (kept,) = store.sessions()
    assert (kept.settings, kept.seed) == ({"trials": 3}, 7)
    assert kept.ended_at > kept.started_at


PASSWORDS = ["secret", "sec/ret:", "se@cret", "sec ret", "it's s@cret", "'", "://a:b@c", "a\nb"]


@pytest.mark.parametrize("password", PASSWORDS)
def test_no_password_is_kept_with_the_command(store: Store, password: str) -> None:
    words = ["tvmfuse", "tune", "m.onnx", "--db", f"postgresql://me:{password}@host/db", "--json"]
    store.add_session(Session(shlex.join(words), "host"))
    (kept,) = store.sessions()
    assert kept.command == "tvmfuse tune m.onnx --db postgresql://me:***@host/db --json"


@pytest.mark.parametrize("password", ["sec ret", "it's", "'sec ret"])
def test_no_password_is_kept_with_a_command_that_nobody_quoted(store: Store, password: str) -> None:
    store.add_session(Session(f"tune --db postgresql://me:{password}@host/db", "host"))
    (kept,) = store.sessions()
    assert kept.command == "tune --db postgresql://me:***@host/db"


def test_passwords_of_two_databases_are_left_out(store: Store) -> None:
    urls = ["postgresql://me:one@a/b", "postgresql://you:two@c/d"]
    store.add_session(Session(shlex.join(["merge", *urls]), "host"))
    (kept,) = store.sessions()
    assert kept.command == "merge postgresql://me:***@a/b postgresql://you:***@c/d"


def test_a_failure_is_kept_with_its_reason_and_never_found(store: Store, key: str) -> None:
    failure = Record(key, CPU, LLVM, "timeout", reason="10 s passed\0", family="gemm")
    store.commit(failure)
    assert [record.reason for record in store.records(Filter(status="timeout"))] == ["10 s passed"]
    assert store.best(Query(key, CPU, LLVM)) is None


def test_the_fastest_median_is_best(store: Store, key: str) -> None:
    store.commit(ok(key, 9.0, 1.0, 9.5), fastest := ok(key, 5.0, 6.0, 100.0), ok(key, 7.0))
    assert store.best(Query(key, CPU, LLVM)).record == fastest
    assert [
        r.median_us for r in store.ranked(Query(key, CPU, LLVM), any_of_family=False, limit=5)
    ] == [6, 7, 9]


def test_committing_twice_keeps_one(store: Store, key: str) -> None:
    record = ok(key)
    assert (store.commit(record), store.commit(record), store.commit(record, ok(key))) == (1, 0, 1)
    assert len(list(store.records())) == 2


def test_a_commit_is_whole_or_nothing(store: Store, key: str) -> None:
    with pytest.raises(StoreError, match=r"workload .* was not added"):
        store.commit(ok(key), ok("missing"))
    assert list(store.records()) == []
    with pytest.raises(StoreError, match=r"session .* was not added"):
        store.commit(ok(key, session="missing"))


FAMILY = {"allow_family": True}
LOOK_UPS = [
    # asked for, options, found (by its time), what the note says
    ((CPU, LLVM), {}, 10.0, ""),
    ((OTHER_CPU, LLVM), {}, None, ""),
    ((OTHER_CPU, LLVM), FAMILY, 10.0, "measured on a CPU, of the family x86-64-v3"),
    ((OLD_CPU, LLVM), FAMILY, None, ""),
    ((GPU, CUDA), FAMILY, 1.0, ""),
    ((GPU, LLVM), FAMILY, None, ""),
    ((CPU, CUDA), FAMILY, None, ""),
]


@pytest.mark.parametrize(("asked", "options", "time", "note"), LOOK_UPS)
def test_a_record_is_found_for_its_device_then_its_family_never_across_kinds(
    store: Store, key: str, asked: tuple, options: dict, time: float | None, note: str
) -> None:
    store.commit(ok(key, 10.0), ok(key, 1.0, device=GPU, target=CUDA))
    found = store.best(Query(key, *asked), **options)
    assert (found and found.record.median_us) == time
    assert note in (found.note if found else "")
    assert bool(found and found.note) == bool(note)


def test_this_very_device_comes_before_a_faster_relative(store: Store, key: str) -> None:
    store.commit(ok(key, 10.0), ok(key, 1.0, device=OTHER_CPU))
    assert store.best(Query(key, CPU, LLVM), allow_family=True).record.device == CPU


def test_a_record_of_another_tvm_is_marked(store: Store, key: str) -> None:
    store.commit(ok(key, versions=replace(Versions.installed(), tvm="0.26.0")))
    found = store.best(Query(key, CPU, LLVM))
    assert found.needs_verification
    assert "TVM 0.26.0" in found.note


def test_equal_buckets_are_told_apart_by_the_modules(store: Store) -> None:
    first, second = workload(), replace(workload(), module="{}")
    same = str.__eq__
    keys = [store.add_workload(each, same) for each in (first, second, first, second)]
    assert keys[0] == keys[2] == first.bucket
    assert keys[1] == keys[3] == f"{first.bucket}-1"
    assert [w.module for w in store.workloads(first.bucket)] == [first.module, second.module]
    assert store.workload(keys[1]).module == "{}"


def test_threads_that_add_one_workload_get_one_key(store: Store) -> None:
    keys: list[str] = []
    threads = [
        threading.Thread(target=lambda: keys.append(store.add_workload(workload(), str.__eq__)))
        for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys == [workload().key] * 8
    assert len(store.workloads()) == 1


def test_records_are_filtered_and_counted(store: Store, key: str) -> None:
    other = store.add_workload(workload(1))
    store.commit(ok(key), ok(key, family="conv"), ok(other, device=GPU, target=CUDA))
    store.commit(Record(other, CPU, LLVM, "crash", family="gemm"))
    assert len(list(store.records(Filter(workload=key)))) == 2
    assert len(list(store.records(Filter(key=key)))) == 2
    assert list(store.records(Filter(key=key[:8]))) == []
    assert len(list(store.records(Filter(kind="cuda", device_family="sm_90")))) == 1
    assert len(list(store.records(Filter(family="gemm", status="ok")))) == 2
    assert [row[:3] for row in store.count("kind", "status")] == [
        ("cuda", "ok", 1),
        ("llvm", "crash", 1),
        ("llvm", "ok", 2),
    ]


def test_pages_join_without_gap_or_repeat(
    store: Store, key: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tvmfuse.store.pages._PAGE", 10)
    store.commit(*(ok(key, 1.0 + n) for n in range(35)))
    assert [record.times_us[0] for record in store.records()] == [1.0 + n for n in range(35)]


def test_the_steps_make_the_tables_of_the_schema(store: Store) -> None:
    options = {"version_table": schema.VERSION_TABLE, "compare_type": True}

    def differences(connection: object) -> list:
        context = MigrationContext.configure(connection, opts=options)
        return compare_metadata(context, schema.metadata)

    assert store.backend.read(differences) == []


def test_the_steps_are_the_revisions_that_are_known() -> None:
    steps = ScriptDirectory(str(Path(schema.__file__).parent / "migrations")).walk_revisions()
    assert [step.revision for step in steps] == list(reversed(schema.REVISIONS))


def test_a_store_opens_again(database: str) -> None:
    with open_store(database) as store:
        store.commit(ok(store.add_workload(workload())))
    with open_store(database, create=False) as store:
        assert len(list(store.records())) == 1


def test_a_database_without_a_store_is_refused_unless_it_may_be_made(database: str) -> None:
    with pytest.raises(StoreError, match=r"there is no|no store"):
        open_store(database, create=False)


def test_several_that_make_one_store_at_once_share_it(database: str) -> None:
    def make(number: int) -> None:
        with open_store(database) as store:
            store.commit(ok(store.add_workload(workload(number))))

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(make, range(4)))
    with open_store(database, create=False) as store:
        assert len(list(store.records())) == 4


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    trials=st.lists(
        st.tuples(st.sampled_from(["conv", "gemm"]), st.floats(1e-3, 1e9), st.booleans()),
        max_size=8,
    )
)
def test_a_store_ranks_as_a_dictionary_does(store: Store, trials: list) -> None:
    key = store.add_workload(workload(int(new_uid(), 16)))
    model: dict[str, list[float]] = {}
    for family, time, works in trials:
        if works:
            store.commit(ok(key, time, family=family))
            model.setdefault(family, []).append(time)
        else:
            store.commit(Record(key, CPU, LLVM, "wrong", family=family))
    for family in ("conv", "gemm"):
        query = Query(key, CPU, LLVM, family=family)
        found = store.ranked(query, any_of_family=False, limit=8)
        assert [record.median_us for record in found] == sorted(model.get(family, []))

from __future__ import annotations

import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tvmfuse.store import Device, Record, Session, TargetKey, Workload, exchange, open_store

if TYPE_CHECKING:
    from tests.cli.conftest import Answer, Cli

CPU = Device("llvm", "x86-64-v3", "a [bold] CPU", {"cores": 2})
LLVM = TargetKey({"kind": "llvm"})
KEY = "ab" * 32


def text(answer: Answer) -> str:
    """Return what a command printed, whatever the width of the terminal."""
    return " ".join(answer.out.split())


@pytest.fixture
def db(tmp_path: Path) -> Path:
    """A store of one workload: two trials that worked and one that did not."""
    path = tmp_path / "team.db"
    with open_store(path) as store, store.session(Session("tune m.onnx", "host")) as session:
        key = store.add_workload(Workload(KEY, "{}", "0.27.0.post1", "C (float32[8,8])"))
        common = {"session": session.uid, "family": "gemm", "decisions": {"rows": 6}}
        for time in (2000.0, 1000.0):
            store.commit(Record(key, CPU, LLVM, "ok", (time,), **common))
        store.commit(Record(key, CPU, LLVM, "timeout", reason="10 s passed", **common))
    return path


def test_ls_shows_each_workload_once(cli: Cli, db: Path) -> None:
    answer = cli("db", "ls", "--db", db, "--json")
    (row,) = answer.json["workloads"]
    assert (row["timed"], row["failed"], row["best_us"]) == (2, 1, 1000)
    shown = text(cli("db", "ls", "--db", db))
    for word in (KEY[:12], "C (float32[8,8])", "a [bold] CPU", "gemm", "1 ms"):
        assert word in shown
    assert "holds no such record" in text(cli("db", "ls", "--db", db, "--kind", "cuda"))


def test_ls_does_not_import_tvm(db: Path, process: Cli) -> None:
    imported = process("db", "ls", "--db", db, PYTHONPROFILEIMPORTTIME="1").err
    assert "sqlalchemy" in imported
    assert " tvm\n" not in imported


def test_the_variable_names_the_store(cli: Cli, db: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TVMFUSE_DB", str(db))
    assert cli("db", "stats", "--json").json["database"] == str(db)
    (row, failed) = cli("db", "stats", "--json").json["records"]
    assert (row["status"], row["records"], failed["status"]) == ("ok", 2, "timeout")


def test_show_ranks_the_records_and_ends_with_the_failures(cli: Cli, db: Path) -> None:
    records = cli("db", "show", KEY[:6], "--db", db, "--json").json["records"]
    assert [record["times_us"] for record in records] == [[1000.0], [2000.0], []]
    assert records[2]["reason"] == "10 s passed"
    shown = text(cli("db", "show", KEY[:6], "--db", db))
    assert "rows 6" in shown
    assert "timeout: 10 s passed" in shown


def test_best_is_what_a_compile_for_this_device_would_use(cli: Cli, db: Path) -> None:
    # The store's records are of another machine.
    asked = ("db", "best", KEY[:6], "--db", db, "--target", "cpu:x86-64-v3", "--json")
    assert cli(*asked).json["records"] == []
    answer = cli(*asked, "--allow-family")
    (record,) = answer.json["records"]
    assert record["times_us"] == [1000.0]
    assert "measured on a [bold] CPU" in record["note"]


def test_best_is_found_in_packs_alone(
    cli: Cli, db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "project" / "tuning_logs" / "packs"
    folder.mkdir(parents=True)
    assert cli("db", "pack", "x86-64-v3", "--db", db, "--output", folder / "v3.jsonl").code == 0
    monkeypatch.chdir(tmp_path / "project")
    monkeypatch.delenv("TVMFUSE_DB", raising=False)
    answer = cli("db", "best", KEY[:6], "--target", "cpu:x86-64-v3", "--allow-family", "--json")
    assert answer.code == 0, answer.err
    assert [record["times_us"] for record in answer.json["records"]] == [[1000.0]]
    assert not (folder.parent / "tvmfuse.db").exists()


def test_two_people_share_their_records(cli: Cli, db: Path, tmp_path: Path) -> None:
    other, lines = tmp_path / "mine.db", tmp_path / "all.jsonl"
    assert cli("db", "merge", db, "--db", other).code == 0
    assert "0 new records, 3 known" in text(cli("db", "merge", db, "--db", other))
    assert "3 records" in text(cli("db", "export", lines, "--db", other))
    third = tmp_path / "third.db"
    assert "3 new records" in text(cli("db", "import", lines, "--db", third))
    assert (
        cli("db", "ls", "--db", third, "--json").json["workloads"]
        == (cli("db", "ls", "--db", db, "--json").json["workloads"])
    )


def test_an_export_never_overwrites(cli: Cli, db: Path, tmp_path: Path) -> None:
    lines = tmp_path / "all.jsonl"
    lines.write_text("mine")
    assert cli("db", "export", lines, "--db", db).code == 2
    assert lines.read_text() == "mine"
    assert cli("db", "export", tmp_path / "x", "--db", db, "--format", "xml").code == 2


def test_an_export_that_breaks_off_leaves_nothing(
    cli: Cli, db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def break_off(*_: object) -> None:
        raise KeyboardInterrupt

    before = set(tmp_path.iterdir())
    monkeypatch.setattr(exchange, "_workload", break_off)
    assert cli("db", "export", tmp_path / "all.jsonl", "--db", db).code == 130
    assert {path for path in tmp_path.iterdir() if path.suffix == ".jsonl"} == set()
    assert {path.name for path in set(tmp_path.iterdir()) - before} <= {
        "team.db-wal",
        "team.db-shm",
    }


@pytest.mark.parametrize(
    "command",
    [("export", "{}"), ("backup", "{}"), ("pack", "x86-64-v3", "--output", "/dev/null/x")],
)
def test_a_folder_that_is_not_there_is_one_line(
    cli: Cli, db: Path, tmp_path: Path, command: tuple[str, ...]
) -> None:
    words = [word.format(tmp_path / "missing" / "file") for word in command]
    answer = cli("db", *words, "--db", db)
    assert answer.code == 2
    assert "Errno" not in answer.error
    assert answer.error.endswith(("create it, or choose another name", "/dev/null: File exists"))


def test_a_pack_is_written_beside_the_store_and_counted(
    cli: Cli, db: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tuning_logs").mkdir()
    monkeypatch.chdir(tmp_path)
    assert cli("db", "pack", "x86-64-v3", "--db", db, "--keep", 1).code == 0
    path = tmp_path / "tuning_logs" / "packs" / "x86-64-v3.jsonl"
    assert path.exists()
    assert cli("db", "stats", "--db", db, "--json").json["packs"][str(path)] == 1


def test_a_pack_of_nothing_is_refused_and_the_one_that_is_there_stays(
    cli: Cli, db: Path, tmp_path: Path
) -> None:
    pack = tmp_path / "shared.jsonl"
    assert cli("db", "pack", "x86-64-v3", "--db", db, "-o", pack).code == 0
    before = pack.read_bytes()
    answer = cli("db", "pack", "m9", "--db", db, "-o", pack)
    assert answer.code == 2
    assert "no timed record of m9 (llvm); it has those of x86-64-v3 (llvm)" in answer.error
    assert pack.read_bytes() == before


def test_prune_keeps_the_best(cli: Cli, db: Path) -> None:
    assert "1 record deleted" in text(cli("db", "prune", "--db", db, "--keep", 1))
    (row,) = cli("db", "ls", "--db", db, "--json").json["workloads"]
    assert (row["timed"], row["failed"], row["best_us"]) == (1, 1, 1000)
    assert cli("db", "prune", "--db", db).code == 2  # how many stay must be said


def test_check_exits_with_1_where_a_record_was_changed(cli: Cli, db: Path) -> None:
    assert cli("db", "check", "--db", db).code == 0
    with sqlite3.connect(db) as connection:
        connection.execute("UPDATE records SET times_us = '[0.1]' WHERE status = 'ok'")
    answer = cli("db", "check", "--db", db, "--json")
    assert answer.code == 1
    assert (answer.json["healthy"], answer.json["n_damaged"]) == (False, 2)


def test_backup_and_upgrade(cli: Cli, db: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy.db"
    assert cli("db", "backup", copy, "--db", db).code == 0
    assert cli("db", "backup", copy, "--db", db).code == 2
    assert cli("db", "check", "--db", copy).code == 0
    assert "the newest" in text(cli("db", "upgrade", "--db", copy))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("ls",), "there is no"),
        (("show", "zz"), "there is no"),
        (("merge", "missing.db"), "there is no store missing.db"),
        (("import", "missing.jsonl"), "missing.jsonl cannot be read"),
    ],
)
def test_what_is_missing_is_one_line_and_2(
    cli: Cli, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    answer = cli("db", *arguments, "--db", tmp_path / "none.db")
    assert answer.code == 2
    assert said in answer.error


def test_an_unknown_workload_is_2(cli: Cli, db: Path) -> None:
    answer = cli("db", "show", "zz", "--db", db)
    assert answer.code == 2
    assert "'tvmfuse db ls' shows their keys" in answer.error

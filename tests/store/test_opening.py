"""Files and servers that are no store, are of another schema, or cannot be written to."""

from __future__ import annotations

import os
import shutil
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
import sqlalchemy as sa
from alembic import command
from alembic.config import Config
from faults.postgres import Server

from tests.store.conftest import CPU, LLVM, ok, workload
from tvmfuse.errors import StoreError
from tvmfuse.store import Query, backend, open_store, opening, schema
from tvmfuse.store.location import locate


def test_a_new_store_writes_ahead_and_leaves_nothing_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "tuning_logs" / "tvmfuse.db"
    with open_store(path) as store:
        mode = store.backend.read(lambda c: c.exec_driver_sql("PRAGMA journal_mode").scalar())
    assert mode == "wal"
    assert [each.name for each in path.parent.iterdir()] == ["tvmfuse.db"]


def test_where_shared_memory_fails_the_store_keeps_a_rollback_journal(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What SQLite meets on a network file system, made by taking the WAL's own file away.
    genuine = opening._fill_new

    def fill_new(part: Path, *, journal: str) -> None:
        if journal == "WAL":
            part.with_name(f"{part.name}-wal").mkdir()
        genuine(part, journal=journal)

    monkeypatch.setattr(opening, "_fill_new", fill_new)
    with open_store(tmp_path / "tvmfuse.db") as store:
        mode = store.backend.read(lambda c: c.exec_driver_sql("PRAGMA journal_mode").scalar())
        store.add_workload(workload())
    assert mode == "delete"


@pytest.mark.parametrize(
    ("content", "said"),
    [(b"", "is empty"), (b"PK\x03\x04 a zip", "no SQLite file"), (b"SQLite f", "no SQLite file")],
)
def test_a_file_that_is_no_database_is_refused_and_kept(
    tmp_path: Path, content: bytes, said: str
) -> None:
    path = tmp_path / "notes.db"
    path.write_bytes(content)
    with pytest.raises(StoreError, match=said):
        open_store(path)
    assert path.read_bytes() == content


def test_a_database_of_another_program_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "bookmarks.db"
    with sqlite3.connect(path) as other:
        other.execute("CREATE TABLE bookmarks (url TEXT)")
    with pytest.raises(StoreError, match="of another program"):
        open_store(path)


def test_a_file_whose_damage_sqlite_quotes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "tvmfuse.db"
    open_store(path).close()
    content = path.read_bytes()
    path.write_bytes(content.replace(b"ix_records", b"ix_rec\xefrds", 1))  # one bit
    with pytest.raises(StoreError, match="is damaged; restore a backup"):
        open_store(path)


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="cannot be read"):
        open_store(tmp_path)


def test_another_kind_of_server_is_refused_without_its_password() -> None:
    with pytest.raises(StoreError, match="must be a SQLite file or postgresql") as raised:
        open_store("mysql://me:secret@host/db")
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://",
        "postgresql:///db",
        "postgresql://host/db",
        "postgresql://me@host",
        "postgresql://me@host:port/db",
        "postgresql://me@host/db?sslmode=require",
        "postgresql://me@host/db?password=secret",
        "postgresql+psycopg://me@host/db",
        "postgresql+none://me@host/db",
    ],
)
def test_a_url_that_is_not_whole_is_refused_with_its_form(url: str) -> None:
    with pytest.raises(StoreError, match="postgresql://USER:PASSWORD@HOST:PORT/DATABASE") as raised:
        open_store(url)
    assert "secret" not in str(raised.value)


def test_a_server_that_is_not_there_is_one_sentence_without_the_password() -> None:
    with pytest.raises(StoreError, match="does not answer") as raised:
        open_store("postgresql://me:secret@127.0.0.1:1/db", retry_s=0.2)
    assert "secret" not in str(raised.value)
    assert "\n" not in str(raised.value)


def test_a_server_with_tables_of_another_program_is_refused(server: Server) -> None:
    url = server.new_database()
    engine = sa.create_engine(url.replace("postgresql", "postgresql+pg8000"))
    with engine.begin() as connection:
        connection.execute(sa.text("CREATE TABLE records (artist TEXT)"))
    engine.dispose()
    with pytest.raises(StoreError, match="tables of another program: records"):
        open_store(url)


def test_a_server_that_refuses_the_user_is_one_sentence(server: Server) -> None:
    url = server.new_database().replace("tvmfuse@", "nobody:secret@")
    with pytest.raises(StoreError, match='role "nobody" does not exist') as raised:
        open_store(url)
    assert "secret" not in str(raised.value)
    assert "put the right ones into the URL" in str(raised.value)


@pytest.mark.parametrize("given", ["", ":wrong"])
def test_a_password_that_is_missing_or_wrong_is_one_sentence(server: Server, given: str) -> None:
    url = server.new_database()
    with server.asking_for("right"):
        with pytest.raises(StoreError, match="put the right ones into the URL") as raised:
            open_store(url.replace("tvmfuse@", f"tvmfuse{given}@"))
        assert "wrong" not in str(raised.value)
        open_store(url.replace("tvmfuse@", "tvmfuse:right@")).close()


def test_a_database_that_is_not_there_is_one_sentence(server: Server) -> None:
    with pytest.raises(StoreError, match="let 'createdb' make it"):
        open_store(server.new_database() + "0")


def set_revision(database: str, revision: str) -> None:
    with open_store(database) as store:
        statement = sa.text(f"UPDATE {schema.VERSION_TABLE} SET version_num = '{revision}'")
        store.backend.write(lambda connection: connection.execute(statement))


def test_a_schema_of_the_future_is_refused(database: str) -> None:
    set_revision(database, "999")
    with pytest.raises(StoreError, match="schema '999', of a newer tvmfuse"):
        open_store(database)
    with pytest.raises(StoreError, match="of a newer tvmfuse"):
        opening.upgrade(database)


@pytest.fixture
def old(database: str) -> Iterator[str]:
    """A store of the first schema, with one record."""
    with open_store(database) as store:
        store.commit(ok(store.add_workload(workload())))
        config = Config()
        config.set_main_option("script_location", str(Path(schema.__file__).parent / "migrations"))
        config.set_main_option("path_separator", "os")

        def downgrade(connection: sa.Connection) -> None:
            config.attributes["connection"] = connection
            connection.execute(sa.text("DROP INDEX ix_records_family"))
            schema.fusion_measurements.drop(connection)
            schema.cost_models.drop(connection)
            command.stamp(config, "001", purge=True)

        store.backend.write(downgrade)
    return database


def test_an_old_store_is_upgraded_and_its_records_stay(old: str) -> None:
    done = opening.upgrade(old)
    assert done.before == "001"
    assert opening.upgrade(old).before == schema.REVISIONS[-1]
    with open_store(old, create=False) as store:
        assert store.best(Query(workload().key, CPU, LLVM)) is not None
    if done.copy is not None:
        with sqlite3.connect(done.copy) as copy:
            assert copy.execute("SELECT count(*) FROM records").fetchone() == (1,)
            assert copy.execute("SELECT version_num FROM tvmfuse_schema").fetchone() == ("001",)


def test_an_old_file_is_upgraded_when_it_is_opened_but_a_server_only_when_asked(old: str) -> None:
    if "://" in old:
        with pytest.raises(StoreError, match="run 'tvmfuse db upgrade'"):
            open_store(old)
        return
    with open_store(old) as store:
        assert len(list(store.records())) == 1
    assert len(list(Path(old).parent.glob("*.schema-001-*"))) == 1


READ_ONLY = """
import os, sys
from tests.store.conftest import *
from tvmfuse.errors import StoreError
from tvmfuse.store import Query
with open_store(sys.argv[2]) as store:  # loads what is loaded late
    store.best(Query(workload().key, CPU, LLVM))
if os.geteuid() == 0:  # root may write to everything
    os.setuid(65534)
with open_store(sys.argv[1]) as store:
    print(store.best(Query(workload().key, CPU, LLVM)).record.median_us)
    try:
        store.commit(ok(workload().key))
    except StoreError as error:
        print(error)
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no users to change to")
def test_a_read_only_store_is_read_and_says_that_it_cannot_be_written_to(file: Path) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:  # pytest's own folders are private
        path = Path(shutil.copy(file, folder))
        path.chmod(0o444)
        Path(folder).chmod(0o555)
        done = subprocess.run(
            [sys.executable, "-c", READ_ONLY, str(path), str(file)],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": f"{Path.cwd()}:{Path.cwd() / 'scripts'}"},
        )
        Path(folder).chmod(0o755)
    median, error = done.stdout.splitlines() if done.returncode == 0 else ("", done.stderr)
    assert median == "10.0", error
    assert error.endswith("cannot be written to; choose another by --db")


def test_a_backup_is_whole_while_another_writes(file: Path, tmp_path: Path) -> None:
    with open_store(file) as store:
        store.commit(ok(workload().key, 1.0))
        copy = opening.back_up(file, tmp_path / "copy.db")
    with open_store(copy) as store:
        assert len(list(store.records())) == 61
    with pytest.raises(StoreError, match="is there already"):
        opening.back_up(file, copy)


def test_the_nearest_folder_is_used_unless_a_database_is_given(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    inner = tmp_path / "project" / "src"
    inner.mkdir(parents=True)
    assert "the user's data folder" in locate(start=inner).origin
    (tmp_path / "project" / "tuning_logs").mkdir()
    found = locate(start=inner)
    assert found.database == str(tmp_path / "project" / "tuning_logs" / "tvmfuse.db")
    assert found.packs == tmp_path / "project" / "tuning_logs" / "packs"
    assert locate("x.db", start=inner).database == "x.db"
    assert locate("postgresql://me:secret@host:1/db").shown == "postgresql://me:***@host:1/db"


def test_a_busy_store_is_told(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backend, "BUSY_S", 0.1)
    with sqlite3.connect(file, isolation_level=None) as other, open_store(file) as store:
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(StoreError, match="was locked by another process"):
            store.commit(ok(workload().key))
        other.execute("ROLLBACK")
        assert store.commit(ok(workload().key)) == 1


LOOK = """
import sys
from tvmfuse.store import open_store
with open_store(sys.argv[1], create=False) as store:
    print(len(list(store.records())))
"""


def test_opening_a_store_again_does_not_unlock_it_for_others(file: Path) -> None:
    # Closing any file of a SQLite database drops all locks of the process: the next process
    # that leaves would then take the log away, with all that is written to it from then on.
    def seen_by_another() -> int:
        command = [sys.executable, "-c", LOOK, str(file)]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    with open_store(file) as store:
        store.commit(ok(workload().key, 1.0))
        with open_store(file):
            pass
        assert seen_by_another() == 61
        store.commit(ok(workload().key, 2.0))
        assert seen_by_another() == 62

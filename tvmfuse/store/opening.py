"""Open a store: make a new one, refuse what is none, bring an old one up to date."""

from __future__ import annotations

import os
import shutil
import sqlite3
import tempfile
import threading
import time
from dataclasses import dataclass, replace
from pathlib import Path

import sqlalchemy as sa

from tvmfuse import files
from tvmfuse.errors import StoreError
from tvmfuse.store.backend import RETRY_S, Backend, postgres_backend, sqlite_backend
from tvmfuse.store.schema import APPLICATION_ID, REVISIONS, VERSION_TABLE, metadata

_HEADER = b"SQLite format 3\0"
_OPEN_S = 10.0
_ONE_MIGRATION = threading.Lock()  # alembic keeps what it works on in globals of its modules
_LOCK = APPLICATION_ID  # of PostgreSQL's advisory locks, taken while the schema changes


def open_backend(database: str | Path, *, create: bool = True, retry_s: float = RETRY_S) -> Backend:
    """Open the database of a store, of the schema that this tvmfuse writes.

    A SQLite file of an older schema is copied and then upgraded. A PostgreSQL database is
    upgraded by ``tvmfuse db upgrade`` alone: others may be using it.

    Parameters
    ----------
    database : str or Path
        A SQLite file, or a ``postgresql://`` URL.
    create : bool
        Whether to make what is not there.
    retry_s : float
        How long a server may be away, in seconds.

    Raises
    ------
    StoreError
        It is missing, damaged, of another program, of a newer tvmfuse, or cannot be reached.
    """
    path = _sqlite_path(database)
    if path is None:
        return _open_postgres(str(database), create=create, retry_s=retry_s)
    return _open_sqlite(path, create=create)


@dataclass(frozen=True)
class Upgraded:
    """What an upgrade did.

    Parameters
    ----------
    name : str
        The database.
    before : str
        The schema that it had.
    copy : Path, optional
        The copy of the file that was made first.
    """

    name: str
    before: str
    copy: Path | None = None


def upgrade(database: str | Path) -> Upgraded:
    """Bring the schema of a store up to date.

    Raises
    ------
    StoreError
        As :func:`open_backend`; or there is no store.
    """
    path = _sqlite_path(database)
    backend, found = _look_at_postgres(str(database)) if path is None else _look_at_sqlite(path)
    if found is None:
        raise StoreError(f"store: {backend.name} holds no store that could be upgraded")
    return _upgrade(backend, found)


def back_up(path: Path, to: Path) -> Path:
    """Copy a SQLite file while others may be writing to it.

    Raises
    ------
    StoreError
        The copy is there already, or one of the two cannot be read or written.
    """
    if to.exists():
        raise StoreError(f"store: {to} is there already; choose another name for the copy")
    files.check_destination(to)
    with tempfile.TemporaryDirectory(dir=to.parent, prefix=".tvmfuse-") as folder:
        part = Path(folder) / to.name
        try:
            source = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)
            copy = sqlite3.connect(part)
            source.backup(copy)
            copy.close()
            source.close()
        except sqlite3.Error as error:
            raise StoreError(f"store: {path} cannot be copied to {to}: {error}") from error
        part.replace(to)
    return to


def _sqlite_path(database: str | Path) -> Path | None:
    text = str(database)
    is_url = "://" in text and not text.startswith("sqlite:")
    return None if is_url else Path(text.removeprefix("sqlite:///"))


def _open_sqlite(path: Path, *, create: bool) -> Backend:
    if create and not path.exists():
        _make_sqlite(path)
    backend, found = _look_at_sqlite(path)
    if found is None:
        raise StoreError(f"store: {path} is damaged: it names no schema; restore a backup")
    _upgrade(backend, found)
    return backend


def _look_at_sqlite(path: Path) -> tuple[Backend, str | None]:
    """Return the back end of a file and its schema, or refuse it."""
    if not path.exists():
        raise StoreError(f"store: there is no store {path}; 'tvmfuse tune' with --db makes it")
    is_read_only = not os.access(path, os.W_OK) or not os.access(path.parent, os.W_OK)
    backend = sqlite_backend(path, is_read_only=is_read_only)
    if _sqlite_application(backend, path) != APPLICATION_ID:
        raise StoreError(f"store: {path} is a SQLite file of another program; choose another")
    found = backend.read(_revision)
    _refuse_newer(backend.name, found)
    return backend, found


def _open_postgres(url: str, *, create: bool, retry_s: float) -> Backend:
    backend, found = _look_at_postgres(url, retry_s=retry_s)
    if found == REVISIONS[-1]:
        return backend
    if found is not None:
        raise StoreError(
            f"store: {backend.name} has schema {found}, but this tvmfuse needs {REVISIONS[-1]}: "
            "run 'tvmfuse db upgrade' when nobody else is using it"
        )
    if not create:
        raise StoreError(f"store: {backend.name} holds no store; 'tvmfuse tune' with --db makes it")
    backend.write(lambda connection: _make_tables(connection, backend.name))
    return backend


def _make_tables(connection: sa.Connection, name: str) -> None:
    """Make the tables of a store on a server, where several may be about to."""
    connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    if _revision(connection) is not None:
        return
    taken = set(sa.inspect(connection).get_table_names()) & set(metadata.tables)
    if taken:
        raise StoreError(
            f"store: {name} holds tables of another program: {', '.join(sorted(taken))}; "
            "give it a database of its own"
        )
    _migrate(connection)


def _look_at_postgres(url: str, *, retry_s: float = RETRY_S) -> tuple[Backend, str | None]:
    # What was never there is not waited for as long as what goes away in the middle of a run.
    backend = postgres_backend(url, retry_s=min(retry_s, _OPEN_S))
    found = backend.read(_revision)
    _refuse_newer(backend.name, found)
    return replace(backend, retry_s=retry_s), found


def _upgrade(backend: Backend, found: str) -> Upgraded:
    if found == REVISIONS[-1]:
        return Upgraded(backend.name, found)
    copy = None if backend.path is None else back_up(backend.path, _copy_name(backend.path, found))
    backend.write(_migrate)
    return Upgraded(backend.name, found, copy)


def _make_sqlite(path: Path) -> None:
    """Make a whole store beside ``path`` and then give it its name, so that nobody sees half."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent, prefix=".tvmfuse-") as folder:
            part = Path(folder) / "ahead.db"
            try:
                _fill_new(part, journal="WAL")
            except (sqlite3.Error, StoreError):  # network file systems cannot share memory
                part = Path(folder) / "back.db"
                _fill_new(part, journal="DELETE")
            _publish(part, path)
    except (OSError, sqlite3.Error) as error:
        raise StoreError(f"store: {path} cannot be made: {error}; choose another") from error


def _fill_new(part: Path, *, journal: str) -> None:
    connection = sqlite3.connect(part, isolation_level=None)
    try:
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA journal_mode = {journal}")  # some answer "wal" and mean no
    finally:
        connection.close()
    backend = sqlite_backend(part)
    backend.write(_migrate)
    backend.close()


def _publish(part: Path, path: Path) -> None:
    try:
        os.link(part, path)  # unlike a rename, it leaves what another process put there
    except FileExistsError:
        return
    except OSError:  # a file system without links
        if not path.exists():
            shutil.move(part, path)


def _sqlite_application(backend: Backend, path: Path) -> int:
    """Return what SQLite says that a file is of, or refuse what is no SQLite file.

    Only what SQLite refused is read past it: a process that closes a file loses all its
    locks on it, and with them, to the next one that leaves, the log that it is writing.
    """
    if path.exists() and path.stat().st_size == 0:
        raise _foreign(path, "is empty")
    try:
        return backend.read(_application)
    except StoreError:
        header = _header(path)
        if header == _HEADER:
            raise
        raise _foreign(path, f"begins with {header[:8]!r}") from None


def _header(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(len(_HEADER))
    except OSError as error:
        raise StoreError(f"store: {path} cannot be read: {error.strerror}") from error


def _foreign(path: Path, what: str) -> StoreError:
    return StoreError(
        f"store: {path} {what}, and is no SQLite file; move it away or choose another"
    )


def _refuse_newer(name: str, found: str | None) -> None:
    if found is not None and found not in REVISIONS:
        raise StoreError(
            f"store: {name} has schema {found!r}, of a newer tvmfuse; this one knows "
            f"{REVISIONS[-1]} at most: upgrade tvmfuse"
        )


def _application(connection: sa.Connection) -> int:
    return int(connection.exec_driver_sql("PRAGMA application_id").scalar_one())


def _revision(connection: sa.Connection) -> str | None:
    if not sa.inspect(connection).has_table(VERSION_TABLE):
        return None
    found = connection.execute(sa.text(f"SELECT version_num FROM {VERSION_TABLE}")).scalar()
    return None if found is None else str(found)


def _migrate(connection: sa.Connection) -> None:
    from alembic import command
    from alembic.config import Config

    if connection.dialect.name == "postgresql":
        connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_LOCK)))
    config = Config()
    folder = str(Path(__file__).parent / "migrations").replace("%", "%%")  # % would name an option
    config.set_main_option("script_location", folder)
    config.set_main_option("path_separator", "os")
    config.attributes["connection"] = connection
    with _ONE_MIGRATION:
        command.upgrade(config, REVISIONS[-1])


def _copy_name(path: Path, revision: str) -> Path:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    return path.with_name(f"{path.name}.schema-{revision}-{stamp}-{os.getpid()}")

"""Connections and transactions: SQLite by path, PostgreSQL by URL, and what their errors mean."""

from __future__ import annotations

import logging
import os
import sqlite3
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import sqlalchemy as sa

from tvmfuse.errors import StoreError

T = TypeVar("T")
Work = Callable[[sa.Connection], T]

BUSY_S = 30.0
RETRY_S = 60.0  # how long a server may be away
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0
_READS = "tvmfuse_reads"
_POOL = "tvmfuse"
_DRIVER = "postgresql+pg8000"
_FORM = "postgresql://USER:PASSWORD@HOST:PORT/DATABASE"

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Backend:
    """A database, and how to speak to it.

    Parameters
    ----------
    engine : sqlalchemy.Engine
        Its connections.
    name : str
        The file, or the URL without its password.
    path : Path, optional
        The SQLite file.
    is_read_only : bool
        Whether it was opened for reading alone.
    retry_s : float
        How long to try again when a server does not answer, in seconds.
    """

    engine: sa.Engine
    name: str
    path: Path | None = None
    is_read_only: bool = False
    retry_s: float = RETRY_S

    def read(self, work: Work[T]) -> T:
        """Run ``work`` in a transaction that changes nothing."""
        return self._run(self.engine.execution_options(**{_READS: True}), work)

    def rows(self, statement: sa.Select[Any]) -> Sequence[sa.Row[Any]]:
        """Return all rows of a query."""
        return self.read(lambda connection: connection.execute(statement).all())

    def write(self, work: Work[T]) -> T:
        """Run ``work`` in a transaction of its own.

        It may run more than once: where the connection breaks, nobody knows whether the
        commit arrived. What it writes must therefore carry its own unique name.

        Raises
        ------
        StoreError
            The database is locked, full, read-only, damaged or away.
        """
        if self.is_read_only:
            raise StoreError(f"store: {self.name} cannot be written to; choose another by --db")
        return self._run(self.engine, work)

    def close(self) -> None:
        """Close all connections."""
        self.engine.dispose()

    def _run(self, engine: sa.Engine, work: Work[T]) -> T:
        deadline = time.monotonic() + self.retry_s
        pause = _FIRST_PAUSE_S
        while True:
            try:
                with engine.begin() as connection:
                    return work(connection)
            except (sa.exc.DBAPIError, ConnectionError) as error:  # pg8000 lets a reset through
                if self.path is not None or not _is_away(error) or time.monotonic() > deadline:
                    raise StoreError(f"store: {explain(self.name, error)}") from error
            except UnicodeDecodeError as error:  # SQLite's message quotes the damaged file
                raise StoreError(f"store: {explain(self.name, error)}") from error
            if pause == _FIRST_PAUSE_S:
                _log.warning("store: %s does not answer; trying for %g s", self.name, self.retry_s)
            engine.dispose()
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)


def sqlite_backend(path: Path, *, is_read_only: bool = False) -> Backend:
    """Return the back end of a SQLite file that is there."""
    uri = f"{path.absolute().as_uri()}?mode={'ro' if is_read_only else 'rw'}"
    if is_read_only and not os.access(path.parent, os.W_OK) and not _has_log(path):
        uri += "&immutable=1"  # reading by WAL would make a file beside it

    def connect() -> sqlite3.Connection:
        connection = sqlite3.connect(
            uri, uri=True, timeout=BUSY_S, isolation_level=None, check_same_thread=False
        )
        connection.execute("PRAGMA foreign_keys = ON")
        connection.execute("PRAGMA synchronous = NORMAL")
        connection.execute("PRAGMA cell_size_check = ON")
        return connection

    engine = sa.create_engine("sqlite://", creator=connect, poolclass=sa.QueuePool)

    @sa.event.listens_for(engine, "begin")
    def begin(connection: sa.Connection) -> None:
        # A transaction that reads first and then writes fails at once where another one wrote
        # in between, whatever the time-out; one that asks for the lock first waits for it.
        reads = connection.get_execution_options().get(_READS)
        connection.exec_driver_sql("BEGIN" if reads else "BEGIN IMMEDIATE")

    return Backend(engine, str(path), path, is_read_only)


def postgres_backend(url: str, *, retry_s: float = RETRY_S) -> Backend:
    """Return the back end of a PostgreSQL server.

    Raises
    ------
    StoreError
        The URL cannot be read, is of another kind, or its driver is not installed.
    """
    parsed = _parsed(url)
    # A server that asks for a password where there is none must not meet None.
    options = {"connect_args": {"password": parsed.password or ""}, "pool_pre_ping": True}
    try:
        driven = parsed.set(drivername=_DRIVER)
        engine = sa.create_engine(driven, pool_logging_name=_POOL, **options)
    except ImportError as error:
        raise StoreError(
            f"store: PostgreSQL needs the package {error.name}: pip install 'tvmfuse[postgres]'"
        ) from error
    # A connection that cannot be closed because the server is gone is no news to anybody.
    logging.getLogger(f"sqlalchemy.pool.impl.QueuePool.{_POOL}").setLevel(logging.CRITICAL)
    return Backend(engine, parsed.render_as_string(), retry_s=retry_s)


def _parsed(url: str) -> sa.URL:
    try:
        parsed = sa.make_url(url)
    except (sa.exc.ArgumentError, ValueError) as error:
        raise StoreError(f"store: the database must be a file or {_FORM}") from error
    # Some drivers take a password there, too.
    shown = parsed.set(query=dict.fromkeys(parsed.query, "...")).render_as_string()
    if parsed.drivername not in ("postgresql", _DRIVER):
        raise StoreError(f"store: the database must be a SQLite file or {_FORM}, but got {shown}")
    if not (parsed.username and parsed.host and parsed.database) or parsed.query:
        raise StoreError(f"store: a server must be given as {_FORM}, but got {shown}")
    return parsed


def explain(name: str, error: sa.exc.DBAPIError | ConnectionError | UnicodeDecodeError) -> str:
    """Return in one line what a database's error means and what to do."""
    cause = error.orig if isinstance(error, sa.exc.DBAPIError) else error
    told: Any = cause.args[0] if cause is not None and cause.args else cause
    if isinstance(cause, UnicodeDecodeError):
        told = cause.object.decode(errors="replace")
    if isinstance(told, dict):  # pg8000 hands on all fields of the server's message
        told = f"{told.get('M')}, code {told.get('C')}"
    said = " ".join(str(told).split())[:200]
    for words, meaning in _MEANINGS.items():
        if any(word in said.lower() for word in words):
            return f"{name} {meaning} ({said})"
    return f"{name} cannot be used: {said}"


_MEANINGS = {
    ("is locked",): f"was locked by another process for more than {BUSY_S:.0f} s; try again",
    ("readonly", "read-only"): "cannot be written to; make it writable or choose another by --db",
    ("is full", "disk i/o error"): "cannot be written to: is the disk full? Nothing was lost",
    ("locking protocol",): (
        "lies on a file system that cannot lock files; put it on a local disk or use PostgreSQL"
    ),
    ("malformed", "not a database", "decode to utf-8"): (
        "is damaged; restore a backup ('tvmfuse db export' writes what can still be read)"
    ),
    ("code 28",): "refuses the user or the password; put the right ones into the URL",
    ("code 3d000",): "is not there; let 'createdb' make it, or name another database in the URL",
    ("code 42501",): "may not be written to by this user; 'GRANT' what is missing",
    ("connection", "network", "code 57p0"): "does not answer; what was committed is safe there",
}


def _is_away(error: sa.exc.DBAPIError | ConnectionError) -> bool:
    """Whether the server ended the connection, or takes none at the moment."""
    if isinstance(error, ConnectionError):
        return True
    said: Any = error.orig.args[0] if error.orig is not None and error.orig.args else ""
    code = said.get("C", "") if isinstance(said, dict) else ""
    refused = isinstance(error, sa.exc.InterfaceError) and "connection" in str(said).lower()
    return error.connection_invalidated or refused or code in ("57P01", "57P02", "57P03")


def _has_log(path: Path) -> bool:
    log = path.with_name(f"{path.name}-wal")
    return log.exists() and log.stat().st_size > 0

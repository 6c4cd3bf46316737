"""The tuning store: every trial of every device, in one SQLite file or PostgreSQL database."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from tvmfuse.store import pages, rows, schema
from tvmfuse.store.backend import RETRY_S, Backend
from tvmfuse.store.lookup import Found, Query, find, whole
from tvmfuse.store.opening import open_backend
from tvmfuse.store.queries import Filter, ranked
from tvmfuse.store.records import Device, Record, Session, Workload, now

_SPARE = 16  # more rows than asked for, where some of these are damaged


class Store:
    """Records, and what they refer to. Any number of processes may write to one.

    Each process opens its own; a store is closed by :meth:`close` or a ``with`` block.

    Parameters
    ----------
    backend : Backend
        Its database, see :func:`open_store`.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend

    @property
    def name(self) -> str:
        """The file, or the URL without its password."""
        return self.backend.name

    def __enter__(self) -> Store:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Close the database."""
        self.backend.close()

    def add_workload(
        self, workload: Workload, is_same: Callable[[str, str], bool] | None = None
    ) -> str:
        """Add a workload unless it is there, and return its key.

        Parameters
        ----------
        workload : Workload
            With ``is_same`` it gets a key of this store, without it keeps its own.
        is_same : callable, optional
            Says whether two modules are structurally equal. Without it, equal keys are
            taken for equal workloads.

        Raises
        ------
        StoreError
            The store cannot be written to.
        """

        def work(connection: sa.Connection) -> str | None:
            columns = schema.workloads.c
            bucket = sa.select(schema.workloads).where(columns.bucket == workload.bucket)
            there = connection.execute(bucket.order_by(columns.id)).all()
            for row in there:
                kept = rows.to_workload(row)
                if kept is None:
                    continue
                is_equal = kept.module == workload.module if is_same else row.key == workload.key
                if is_equal or (is_same is not None and is_same(kept.module, workload.module)):
                    return kept.key
            key = workload.key
            if is_same is not None:
                key = f"{workload.bucket}-{len(there)}" if there else workload.bucket
            values = rows.workload_values(replace(workload, key=key))
            return key if rows.insert_new(connection, schema.workloads, values) else None

        while True:  # where another one added a workload of this bucket meanwhile, look again
            key = self.backend.write(work)
            if key is not None:
                return key

    def workload(self, key: str) -> Workload | None:
        """Return a workload, or None where it is missing or damaged."""
        statement = sa.select(schema.workloads).where(schema.workloads.c.key == key)
        row = self.backend.read(lambda connection: connection.execute(statement).one_or_none())
        return None if row is None else rows.to_workload(row)

    def workloads(self, bucket: str | None = None) -> list[Workload]:
        """Return the whole workloads, of one bucket or all."""
        statement = sa.select(schema.workloads).order_by(schema.workloads.c.id)
        if bucket is not None:
            statement = statement.where(schema.workloads.c.bucket == bucket)
        found = self.backend.rows(statement)
        return [workload for row in found if (workload := rows.to_workload(row)) is not None]

    def commit(self, *records: Record) -> int:
        """Add records in one transaction; one that is there already is left as it is.

        Returns
        -------
        int
            How many were new.

        Raises
        ------
        StoreError
            The store cannot be written to, or a workload or session was not added.
        """

        def work(connection: sa.Connection) -> int:
            references = rows.References(connection)
            return sum(rows.insert_record(record, references) for record in records)

        return self.backend.write(work)

    def ranked(self, query: Query, *, any_of_family: bool, limit: int) -> Sequence[Record]:
        """Return the fastest whole records that were asked for, best first."""
        for n_rows in (limit, limit + _SPARE):
            found = self.backend.rows(ranked(query, any_of_family=any_of_family, limit=n_rows))
            records = whole([rows.to_record(row) for row in found], self.name)
            kept = [each for each in records if query.accepts(each, any_of_family=any_of_family)]
            if len(kept) == len(found):
                break
        return kept[:limit]

    def best(self, query: Query, *, allow_family: bool = False) -> Found | None:
        """Return the best record of this store for a device, see :func:`lookup.find`."""
        return next(iter(find([self], query, allow_family=allow_family)), None)

    def records(self, wanted: Filter | None = None) -> Iterator[Record | None]:
        """Yield records in the order of their commit; None stands for a damaged one.

        Where a part of a file cannot be read, the records of that part are passed over.

        Raises
        ------
        StoreError
            Nothing can be read any more.
        """
        statement = rows.RECORDS.where(*(wanted or Filter()).clauses())
        for row in pages.rows(self.backend, statement, schema.records.c.id):
            yield None if row is None else rows.to_record(row)

    def devices(self) -> list[Device]:
        """Return the whole devices."""
        statement = sa.select(schema.devices).order_by(schema.devices.c.id)
        found = self.backend.rows(statement)
        return [device for row in found if (device := rows.to_device(row)) is not None]

    def add_session(self, session: Session) -> None:
        """Add a session unless it is there."""
        values = rows.session_values(session)
        self.backend.write(lambda connection: rows.insert_new(connection, schema.sessions, values))

    @contextmanager
    def session(self, session: Session) -> Iterator[Session]:
        """Add a session, and note when it ended; one that is killed has no end."""
        self.add_session(session)
        yield session
        ended = sa.update(schema.sessions).where(schema.sessions.c.uid == session.uid)
        self.backend.write(lambda connection: connection.execute(ended.values(ended_at=now())))

    def sessions(self) -> list[Session]:
        """Return the whole sessions, oldest first."""
        statement = sa.select(schema.sessions).order_by(schema.sessions.c.started_at)
        found = self.backend.rows(statement)
        return [session for row in found if (session := rows.to_session(row)) is not None]

    def sizes(self) -> dict[str, int]:
        """Return how many rows each table has."""
        counts = (
            sa.select(sa.func.count()).select_from(table).scalar_subquery().label(table.name)
            for table in schema.metadata.sorted_tables
        )
        (row,) = self.backend.rows(sa.select(*counts))
        return {name: int(number) for name, number in row._mapping.items()}

    def count(self, *columns: str, wanted: Filter | None = None) -> list[tuple[Any, ...]]:
        """Count records in groups.

        Parameters
        ----------
        *columns : str
            What makes a group: some of "workload", "summary", "kind", "device_family",
            "device", "family" and "status".
        wanted : Filter, optional
            Which records.

        Returns
        -------
        list of tuple
            The columns, the number of records, and the least median time in microseconds.
        """
        names = {
            "kind": schema.devices.c.kind,
            "device_family": schema.devices.c.family,
            "device": schema.devices.c.name,
            "family": schema.records.c.family,
            "status": schema.records.c.status,
            "workload": schema.workloads.c.key,
            "summary": schema.workloads.c.summary,
        }
        group = [names[column] for column in columns]
        table = schema.records.join(schema.workloads).join(schema.devices).join(schema.targets)
        counted = sa.select(*group, sa.func.count(), sa.func.min(schema.records.c.median_us))
        statement = counted.select_from(table).where(*(wanted or Filter()).clauses())
        statement = statement.group_by(*group).order_by(*group)
        return [tuple(row) for row in self.backend.rows(statement)]


def open_store(database: str | Path, *, create: bool = True, retry_s: float = RETRY_S) -> Store:
    """Open the store at a path or a ``postgresql://`` URL, see :func:`opening.open_backend`.

    Raises
    ------
    StoreError
        It is missing, damaged, of another program, of a newer tvmfuse, or cannot be reached.
    """
    return Store(open_backend(database, create=create, retry_s=retry_s))

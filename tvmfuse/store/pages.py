"""Read a table to its end, page by page, past what is damaged."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import sqlalchemy as sa

from tvmfuse.errors import StoreError
from tvmfuse.store.backend import Backend

_PAGE = 1000
_MOST_FAILED = 100  # rows in a row that cannot be read; a page of a file holds fewer


def rows(
    backend: Backend, statement: sa.Select[Any], identity: sa.Column[Any]
) -> Iterator[sa.Row[Any] | None]:
    """Yield the rows of a query in the order of their ids.

    Where a part of a file cannot be read, the rows of that part are passed over.

    Parameters
    ----------
    backend : Backend
        The database.
    statement : sqlalchemy.Select
        The query, without an order.
    identity : sqlalchemy.Column
        The primary key of its table.

    Yields
    ------
    sqlalchemy.Row or None
        None stands for a row that cannot be read.

    Raises
    ------
    StoreError
        Nothing can be read any more.
    """
    last, size, n_failed = 0, _PAGE, 0
    while True:
        page = statement.where(identity > last).order_by(identity).limit(size)
        try:
            found = _after(last, backend, page)
        except StoreError:
            if size == 1:
                yield None
                last, n_failed = last + 1, n_failed + 1
            if backend.path is None or n_failed == _MOST_FAILED:
                raise
            size = 1
            continue
        if not found:
            return
        last, size, n_failed = found[-1].id, min(2 * size, _PAGE), 0
        yield from found


def _after(last: int, backend: Backend, page: sa.Select[Any]) -> Sequence[Any]:
    """Return a page; a damaged tree may lead back to the rows before it."""
    found = backend.rows(page)
    ids = [last, *(row.id for row in found)]
    if any(after <= before for before, after in pairwise(ids)):
        raise StoreError(f"store: {backend.name} is damaged: its rows are out of order")
    return found

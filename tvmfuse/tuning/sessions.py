"""Open the store in use for the trials of one run, with their provenance."""

from __future__ import annotations

import platform
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict

from tvmfuse.store import Session, open_store
from tvmfuse.store.devices import device_of, target_key
from tvmfuse.store.location import locate
from tvmfuse.targets import Target
from tvmfuse.tuning.campaign import Settings
from tvmfuse.tuning.history import StoreHistory


@contextmanager
def open_history(
    database: str | None, target: Target, settings: Settings, *, command: str
) -> Iterator[StoreHistory]:
    """Open the store in use for a session of this device.

    Parameters
    ----------
    database : str, optional
        A file or URL, made where it is not there; else the store in use.
    target : Target
        What kernels are compiled for.
    settings : Settings
        How it is tuned.
    command : str
        Who asks.

    Yields
    ------
    StoreHistory
        Where the trials go; the session ends with the block.

    Raises
    ------
    StoreError
        The store cannot be opened or written to.
    """
    begun = Session(command, platform.node(), settings.seed, asdict(settings))
    with open_store(locate(database).database) as store, store.session(begun) as session:
        yield StoreHistory(store, device_of(target), target_key(target), session)

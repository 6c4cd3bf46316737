"""The records that a compile may use: those of exactly its device, from the store in use."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from tvmfuse.store import open_store
from tvmfuse.store.devices import device_of, target_key
from tvmfuse.store.kernels import KernelRecords
from tvmfuse.store.location import locate
from tvmfuse.store.lookup import Source
from tvmfuse.store.packs import load_packs
from tvmfuse.targets import Target
from tvmfuse.tuning.history import VERSIONS
from tvmfuse.tuning.verify import Verifier


@contextmanager
def kernel_records(
    database: str | None, target: Target, *, allow_family: bool = False
) -> Iterator[KernelRecords | None]:
    """Open the store in use for looking records up.

    Parameters
    ----------
    database : str, optional
        A file or URL that must be there; else the store in use, which need not be.
    target : Target
        What is compiled for.
    allow_family : bool
        Whether records of other devices of the same family will do.

    Notes
    -----
    A record of another TVM is replayed in a process of its own, and used where it computes
    what the untuned kernel does.

    Yields
    ------
    KernelRecords or None
        None where there is neither a store nor a pack.

    Raises
    ------
    StoreError
        The store was named but is missing, or it cannot be read.
    """
    place = locate(database)
    device = device_of(target)
    sources: list[Source] = list(load_packs(place.all_packs, device))
    with ExitStack() as stack:
        if database or Path(place.database).exists():
            store = stack.enter_context(open_store(place.database, create=False))
            sources.insert(0, store)
        verifier = stack.enter_context(Verifier(target))
        yield (
            KernelRecords(
                sources,
                device,
                target_key(target),
                family_versions=VERSIONS,
                allow_family=allow_family,
                verify=verifier,
            )
            if sources
            else None
        )

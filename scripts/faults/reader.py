"""A process that opens damaged copies of a store; a crash of SQLite would end it, and only it.

Arguments: a JSON file of the checksums that the records had, and the copies.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from faults.samples import DEVICE, TARGET, workload
from tvmfuse.errors import StoreError
from tvmfuse.store import Query, open_store


def outcome(path: str, checksums: dict[str, str]) -> str:
    """Return "whole N" for N whole records, "refused WHY", or "wrong" for one never committed."""
    n_whole = 0
    try:
        with open_store(path, create=False) as store:
            found = store.best(Query(workload(0).key, DEVICE, TARGET))
            if found and checksums.get(found.record.uid) != found.record.checksum:
                return "wrong"
            for record in store.records():
                if record is None:
                    continue
                if checksums.get(record.uid) != record.checksum:
                    return "wrong"
                n_whole += 1
    except StoreError as error:
        return f"refused {error}"
    return f"whole {n_whole}"


def main() -> None:
    """Print one line for each copy."""
    checksums = json.loads(Path(sys.argv[1]).read_text())
    for path in sys.argv[2:]:
        print(" ".join(outcome(path, checksums).split()), flush=True)


if __name__ == "__main__":
    main()

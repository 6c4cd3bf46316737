"""A process that commits records one by one, and says which ones it has committed.

Arguments: the database, who it is, how many commits, and the largest file it may write in
bytes (0: no limit), as a disk that is full.
"""

from __future__ import annotations

import resource
import signal
import sys
import time
from pathlib import Path

from faults.samples import record, workload
from tvmfuse.errors import StoreError
from tvmfuse.store import open_store


def main() -> None:
    """Commit, and print a line for each commit: its name and how long it took."""
    database, who, n_commits, limit = sys.argv[1], *map(int, sys.argv[2:5])
    with open_store(database) as store:
        store.add_workload(workload(who))
        print("ready", flush=True)
        sys.stdin.readline()
        if limit:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            size = Path(database).stat().st_size + limit
            resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
        for trial in range(n_commits):
            trial_record = record(who, trial)
            began = time.monotonic()
            store.commit(trial_record)
            print(trial_record.uid, time.monotonic() - began, flush=True)


if __name__ == "__main__":
    try:
        main()
    except StoreError as error:
        print("refused", error, flush=True)
        sys.exit(2)

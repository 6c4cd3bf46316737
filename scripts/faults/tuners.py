"""Kill a tuner, or one of its processes, at random instants."""

from __future__ import annotations

import random
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path

import psutil

from faults import postgres
from faults.samples import child, environment, whole
from faults.trials import Outcome
from tvmfuse.store import open_store
from tvmfuse.store.maintenance import check

GONE_S = 5.0
_MARK = "TVMFUSE_FAULT"


def killed_tuners(folder: Path, *, n_kills: int, seed: int = 0) -> Outcome:
    """Kill the tuner itself, each time with a store of its own; the last one may end."""
    chance = random.Random(seed)
    began = time.monotonic()
    tuner = _start(folder, "whole", seed)
    tuner.communicate()
    usual_s = time.monotonic() - began
    counted = dict.fromkeys(("killed", "opened whole", "lost", "in flight and kept", "left"), 0)
    for number in range(n_kills):
        tuner = _start(folder, f"kill{number}", seed)
        time.sleep(chance.uniform(0.0, usual_s))
        tuner.kill()
        told = _n_told(tuner.communicate()[0])
        counted["killed"] += tuner.returncode != 0
        counted["left"] += len(_left(str(folder / f"kill{number}.db")))
        with open_store(folder / f"kill{number}.db") as store:
            found = len(whole(store))
            counted["opened whole"] += check(store).is_healthy
        counted["lost"] += max(0, told - found)
        counted["in flight and kept"] += max(0, found - told)
    _start(folder, "last", seed).communicate()  # it clears up what the others left
    folders = len(list(folder.glob("tvmfuse-tune-*")))
    is_right = counted["opened whole"] == n_kills and not counted["lost"] + counted["left"]
    figures: Mapping[str, object] = {"tuners": n_kills, **counted, "folders left": folders}
    return Outcome("kill -9 of tuners", figures, is_right and not folders)


def killed_workers(folder: Path, *, n_kills: int, seed: int = 0) -> Outcome:
    """Kill processes that a tuner started; it goes on, and notes what was lost."""
    chance = random.Random(seed)
    n_killed = n_ended = n_runs = n_lost = 0
    while n_killed < n_kills:
        tuner = _start(folder, f"workers{n_runs}", seed)
        n_runs += 1
        while tuner.poll() is None and n_killed < n_kills:
            time.sleep(chance.uniform(0.0, 3.0))
            victims = _children(tuner.pid)
            if victims:
                chance.choice(victims).kill()
                n_killed += 1
        told = _n_told(tuner.communicate()[0])
        n_ended += tuner.returncode == 0
        with open_store(folder / f"workers{n_runs - 1}.db") as store:
            n_lost += max(0, told - len(whole(store)))
    figures = {"workers": n_killed, "runs": n_runs, "ended well": n_ended, "lost": n_lost}
    return Outcome("kill -9 of workers", figures, n_ended == n_runs and not n_lost)


def server_away(folder: Path, server: postgres.Server, *, n_stops: int, seed: int = 0) -> Outcome:
    """Stop and start the server of a store, as in a crash, while a model is tuned into it."""
    database = server.new_database()
    tuner = _start(folder, database, seed)
    assert tuner.stdout is not None
    told = 0
    for _ in range(n_stops):
        for line in tuner.stdout:
            told = int(line) if line.strip().isdigit() else told
            break
        server.stop("immediate")
        time.sleep(1.0)
        server.start()
    told = max(told, _n_told(tuner.communicate()[0]))
    with open_store(database, create=False) as store:
        found = [record.uid for record in whole(store)]
    n_lost, n_repeated = max(0, told - len(found)), len(found) - len(set(found))
    figures = {"stops": n_stops, "trials told": told, "lost": n_lost, "repeated": n_repeated}
    is_right = tuner.returncode == 0 and told > 0 and not n_lost + n_repeated
    return Outcome("server away from a tuner", figures, is_right)


def _start(folder: Path, name: str, seed: int) -> subprocess.Popen[str]:
    database = name if "://" in name else str(folder / f"{name}.db")
    variables = {**environment(), "TMPDIR": str(folder), _MARK: database}
    command = child("tuner", database, seed, 0)
    tuner = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, env=variables
    )
    assert tuner.stdout is not None
    assert tuner.stdout.readline() == "ready\n"
    return tuner


def _n_told(text: str) -> int:
    """Return the last whole number that a tuner printed."""
    numbers = [line for line in text.rpartition("\n")[0].splitlines() if line.isdigit()]
    return int(numbers[-1]) if numbers else 0


def _left(mark: str) -> list[int]:
    """Return the processes of a tuner that are there still when they should be gone."""
    deadline = time.monotonic() + GONE_S
    while True:
        there = [process.pid for process in psutil.process_iter() if _is_marked(process, mark)]
        if not there or time.monotonic() > deadline:
            return there
        time.sleep(0.1)


def _is_marked(process: psutil.Process, mark: str) -> bool:
    try:
        return process.environ().get(_MARK) == mark
    except (psutil.Error, OSError):  # gone meanwhile, or another user's
        return False


def _children(pid: int) -> list[psutil.Process]:
    try:
        return psutil.Process(pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []

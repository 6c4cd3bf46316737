"""The faults themselves; each returns what it found, as figures."""

from __future__ import annotations

import json
import random
import shutil
import subprocess
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from faults import postgres
from faults.samples import child, environment, fill, is_own, whole
from tvmfuse.store import open_store
from tvmfuse.store.maintenance import check

LONGEST_WAIT_S = 5.0
_PAGE = 4096
_COPIES = 50  # that one process reads
_READ_S = 300.0  # for that many copies; a reader that takes longer goes in circles


@dataclass(frozen=True)
class Outcome:
    """What became of a store.

    Parameters
    ----------
    fault : str
        What was done to it.
    figures : Mapping
        What was counted.
    is_right : bool
        Whether nothing was lost, wrong or slow.
    """

    fault: str
    figures: Mapping[str, object]
    is_right: bool


def many_writers(database: str, *, n_processes: int, n_commits: int) -> Outcome:
    """Let processes commit to one store at once."""
    with open_store(database):
        pass
    writers = [start_writer(database, who, n_commits) for who in range(n_processes)]
    began = time.monotonic()
    for writer in writers:
        go(writer)
    said = [writer.communicate()[0].split() for writer in writers]
    seconds = time.monotonic() - began
    waits = [float(wait) for words in said for wait in words[1::2]]
    committed = {uid for words in said for uid in words[0::2]}
    with open_store(database, create=False) as store:
        found = whole(store)
        is_healthy = check(store).is_healthy
    n_lost = n_processes * n_commits - len({record.uid for record in found} & committed)
    n_foreign = sum(not is_own(record) for record in found)
    figures = {
        "commits": len(committed),
        "lost": n_lost,
        "repeated": len(found) - len({record.uid for record in found}),
        "on a wrong workload": n_foreign,
        "longest wait": f"{max(waits):.2f} s",
        "commits a second": round(len(committed) / seconds),
    }
    is_right = not n_lost and not n_foreign and max(waits) < LONGEST_WAIT_S and is_healthy
    where = "PostgreSQL" if "://" in database else "SQLite"
    return Outcome(
        f"{n_processes} writers, {where}", figures, is_right and len(found) == len(committed)
    )


def killed_writers(folder: Path, *, n_kills: int, seed: int = 0) -> Outcome:
    """Kill a writer at random instants, each time in a store of its own."""
    chance = random.Random(seed)
    n_opened = n_lost = n_committed = n_extra = 0
    for number in range(n_kills):
        path = folder / f"killed{number}.db"
        writer = start_writer(str(path), 0, 10**6)
        go(writer)
        time.sleep(chance.uniform(0.0, 0.15))
        writer.kill()
        # A last line may be cut short: that commit was in flight.
        told = writer.communicate()[0].rpartition("\n")[0].split()[0::2]
        with open_store(path, create=False) as store:
            found = {record.uid for record in whole(store)}
            n_opened += check(store).is_healthy
        n_committed += len(told)
        n_lost += len(set(told) - found)
        n_extra += len(found - set(told))
        for each in folder.glob(f"{path.name}*"):
            each.unlink()
    figures = {
        "kills": n_kills,
        "opened whole": n_opened,
        "commits told": n_committed,
        "lost": n_lost,
        "in flight and kept": n_extra,
    }
    is_right = n_opened == n_kills and not n_lost and n_extra <= n_kills
    return Outcome("kill -9 of writers", figures, is_right)


def damaged_files(folder: Path, *, n_flips: int, seed: int = 0) -> Iterator[Outcome]:
    """Cut a store at each page and at random bytes, and flip single bits of it."""
    original = folder / "original.db"
    checksums = fill(original, 3, 60)
    (folder / "checksums.json").write_text(json.dumps(checksums))
    content = original.read_bytes()
    cuts = [content[:end] for end in range(0, len(content), _PAGE)]
    yield _read_all(folder, "cut at each 4 kB", cuts)
    # The last page is read as if it ended in zeros: in a leaf those are records out of order.
    last = range(len(content) - 4 * _PAGE, len(content), _PAGE // 16)
    yield _read_all(folder, "cut within a page", [content[:end] for end in last])
    chance = random.Random(seed)
    anywhere = [content[: chance.randrange(len(content))] for _ in range(n_flips)]
    yield _read_all(folder, "cut at a random byte", anywhere)
    flips = []
    for _ in range(n_flips):
        flipped = bytearray(content)
        flipped[chance.randrange(len(flipped))] ^= 1 << chance.randrange(8)
        flips.append(bytes(flipped))
    yield _read_all(folder, "one bit flipped", flips)


def full_disk(folder: Path, *, limit: int = 200_000) -> Outcome:
    """Let the disk become full while a writer commits."""
    path = folder / "full.db"
    writer = start_writer(str(path), 0, 10**6, limit=limit)
    go(writer)
    lines = writer.communicate()[0].splitlines()
    told = {line.split()[0] for line in lines if not line.startswith("refused")}
    with open_store(path, create=False) as store:
        found = {record.uid for record in whole(store)}
        is_healthy = check(store).is_healthy
    figures = {
        "commits told": len(told),
        "lost": len(told - found),
        "said": lines[-1].removeprefix("refused ").replace(str(path), path.name),
    }
    is_right = bool(told) and told <= found and is_healthy and writer.returncode == 2
    return Outcome("full disk", figures, is_right)


def server_away(server: postgres.Server, *, n_commits: int, n_stops: int) -> Outcome:
    """Stop and start a server as in a crash, while a writer commits."""
    database = server.new_database()
    writer = start_writer(database, 0, n_commits)
    go(writer)
    for _ in range(n_stops):
        time.sleep(0.3)
        server.stop("immediate")
        time.sleep(0.5)
        server.start()
    told = writer.communicate()[0].split()[0::2]
    with open_store(database, create=False) as store:
        found = [record.uid for record in whole(store)]
    figures = {
        "stops": n_stops,
        "commits told": len(told),
        "lost": len(set(told) - set(found)),
        "repeated": len(found) - len(set(found)),
    }
    is_right = writer.returncode == 0 and len(told) == n_commits and sorted(found) == sorted(told)
    return Outcome("server away", figures, is_right)


def start_writer(database: str, who: int, n_commits: int, limit: int = 0) -> subprocess.Popen[str]:
    """Start a process that commits, and wait until it has opened the store."""
    writer = subprocess.Popen(
        child("writer", database, who, n_commits, limit),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment(),
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "ready\n"
    return writer


def go(writer: subprocess.Popen[str]) -> None:
    """Let a writer begin."""
    assert writer.stdin is not None
    writer.stdin.write("go\n")
    writer.stdin.flush()


def _read_all(folder: Path, fault: str, contents: list[bytes]) -> Outcome:
    counted: Counter[str] = Counter()
    for start in range(0, len(contents), _COPIES):
        copies = folder / "copies"
        copies.mkdir()
        paths = []
        for number, content in enumerate(contents[start : start + _COPIES]):
            paths.append(copies / f"{number}.db")
            paths[-1].write_bytes(content)
        command = child("reader", folder / "checksums.json", *paths)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment()
        ) as reader:
            try:
                lines = reader.communicate(timeout=_READ_S)[0].splitlines()
            except subprocess.TimeoutExpired:
                reader.kill()
                lines = reader.communicate()[0].splitlines()
        counted.update(line.split()[0] for line in lines)
        counted["crashed or endless"] += len(paths) - len(lines)
        shutil.rmtree(copies)
    names = ("whole", "refused", "wrong", "crashed or endless")
    figures = {"files": len(contents), **{name: counted[name] for name in names}}
    return Outcome(fault, figures, not counted["wrong"] and not counted["crashed or endless"])

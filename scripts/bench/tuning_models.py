"""A whole model over the time of tuning: by tvmfuse, and by stock MetaSchedule.

MetaSchedule runs in the environment of its own that ``make peers`` makes, with its workers
repaired (``peers/metaschedule.py``). Its records are copied now and then, and compiled and timed
when it is done, so that timing takes none of its time.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

import tvmfuse
from tvmfuse.frontend import import_model
from tvmfuse.runtime.benchmark import alternate
from tvmfuse.runtime.samples import random_inputs
from tvmfuse.runtime.side import python_side
from tvmfuse.tuning.tuner import Status

HERE = Path(__file__).parent
PEER = HERE / "peers" / "metaschedule.py"
FILES = ("database_workload.json", "database_tuning_record.json")
_FINISH = """
import json, os, runpy, sys
from pathlib import Path
peer = runpy.run_path(sys.argv[1])
os.environ["TVMFUSE_IMPORTS"] = str(peer["IMPORTS"])
model, folder = map(Path, sys.argv[2:4])
print(json.dumps(peer["finish"](model, folder, threads=int(sys.argv[4]))))
"""


def ours(model: Path, *, seconds: float) -> dict[str, Any]:
    """Tune by tvmfuse into an empty store; return the curve and the measured ends."""
    told: list[tuple[float, int, float]] = []

    def watch(status: Status) -> None:
        if status.model_us is not None:
            told.append((status.seconds, status.trials, status.model_us))

    with tempfile.TemporaryDirectory() as folder:
        report = tvmfuse.tune(model, time=seconds, db=Path(folder) / "t.db", progress=watch)
    begun_s = report.seconds - report.status.seconds
    return {
        "seconds": report.seconds,
        "trials": report.status.trials,
        "first_trial_s": report.first_s,
        "default_us": report.default_us,
        "tuned_us": report.tuned_us if report.gain > 1 else report.default_us,
        "estimates": [(begun_s + s, trials, time_us) for s, trials, time_us in told],
    }


def stock(
    model: Path, folder: Path, *, seconds: float, looks: int, threads: int, python: Path
) -> list[dict[str, Any]]:
    """Tune by MetaSchedule; return what each copy of its records is worth.

    The records are copied ``looks`` times, each time after twice as long as before. A folder that
    holds all copies is taken as tuned already.
    """
    times = [seconds / 2**number for number in reversed(range(looks))]
    places = {folder / f"{model.stem}-{time_s:.0f}s": time_s for time_s in times}
    if not all((place / "done.json").exists() for place in places):
        _tune(model, folder, places, threads=threads, python=python)
    return [
        _worth(place, time_s, threads=threads, python=python) for place, time_s in places.items()
    ]


def _tune(
    model: Path,
    folder: Path,
    places: Mapping[Path, float],
    *,
    threads: int,
    python: Path,
) -> None:
    running = folder / f"{model.stem}-running"
    shutil.rmtree(running, ignore_errors=True)
    running.mkdir(parents=True)
    # Without -P the script's folder comes first, where a file has the name of TVM's package.
    command = [python, "-P", PEER, model, "--into", running, "--threads", str(threads)]
    with (running / "log.txt").open("w") as log:
        tuner = subprocess.Popen(command, stdout=log, stderr=log, start_new_session=True)
        began = time.monotonic()
        try:
            for place, time_s in places.items():
                _wait(tuner, began + time_s - time.monotonic(), running / "log.txt")
                _copy(model, running, place)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(tuner.pid, signal.SIGKILL)
            tuner.wait()


def _wait(tuner: subprocess.Popen[bytes], seconds: float, log: Path) -> None:
    """Let a tuner work; raise where it ends by itself, for then nothing was compared."""
    try:
        tuner.wait(timeout=max(0.0, seconds))
    except subprocess.TimeoutExpired:
        return
    said = log.read_text(errors="replace").strip().splitlines() or ["nothing"]
    raise RuntimeError(f"MetaSchedule ended with code {tuner.returncode}; it said: {said[-1]}")


def _copy(model: Path, running: Path, place: Path) -> None:
    shutil.rmtree(place, ignore_errors=True)
    place.mkdir()
    for name in FILES:
        if (running / name).exists():
            shutil.copy(running / name, place)
    (place / "model.onnx").symlink_to(model.absolute())
    (place / "done.json").write_text("{}")


def _worth(place: Path, seconds: float, *, threads: int, python: Path) -> dict[str, Any]:
    """Compile with the records of a folder and time the model; kept in the folder."""
    known = json.loads((place / "done.json").read_text())
    if known:
        return dict(known)
    model = place / "model.onnx"
    command = [python, "-c", _FINISH, PEER, model, place, str(threads)]
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found = json.loads(done.stdout.splitlines()[-1])
    inputs = place / "inputs.npz"
    np.savez(inputs, **random_inputs(import_model(model).signature.inputs))  # type: ignore[arg-type]
    side = python_side(
        "stock", model, inputs, threads=threads, python=str(python), loader=str(PEER)
    )
    measured = alternate([side], rounds=3, round_us=1e6)
    found |= {"seconds": seconds, "model_us": measured.timings["stock"].median_us}
    (place / "done.json").write_text(json.dumps(found))
    return dict(found)

"""Compile by the command line: tvmfuse with or without records, TVM by MetaSchedule."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from coverage_table import StepError
from sides import METASCHEDULE, SCRIPTS

from tvmfuse.store import open_store


def compile_ours(
    model: Path, bundle: Path, *, store: Path | None, threads: int, patience_s: float
) -> tuple[Path, Mapping[str, Any]]:
    """Compile a model by tvmfuse; return its bundle, and what that took.

    Parameters
    ----------
    model, bundle : Path
        The ONNX file, and the directory to write.
    store : Path, optional
        The records to use; without, it is zero trials: an empty store is named, so that
        none is found on the way.
    threads : int
        Threads that it is compiled for.
    patience_s : float
        Longest time to wait.

    Returns
    -------
    bundle : Path
        The bundle.
    compiled : Mapping
        ``kernels`` and how many of them by each kind of schedule, ``seconds``, and the
        largest resident size, ``peak_mib``.

    Raises
    ------
    StepError
        It did not compile.
    """
    named = store or no_records(bundle.parent)
    command = ("-m", "tvmfuse", "compile", model, "-o", bundle, "--db", named, "--json")
    printed, peak_kib = run_alone(command, threads=threads, patience_s=patience_s)
    said = json.loads(printed)
    return bundle, {
        "kernels": sum(said["kernels"].values()),
        "schedules": said["kernels"],
        "seconds": sum(said["seconds"].values()),
        "peak_mib": peak_kib / 1024,
    }


def by_metaschedule(
    python: Path, model: Path, *, threads: int, seconds: float
) -> Mapping[str, Any]:
    """Have MetaSchedule tune a model for a while, unless it did so before; say what it reached.

    The library stays beside the model, where its side looks for it.

    Raises
    ------
    StepError
        It failed.
    """
    script = SCRIPTS / f"{METASCHEDULE}.py"
    command = ("-P", script, model, "--seconds", seconds, "--threads", threads)
    printed, _ = run_alone(command, threads=threads, patience_s=seconds + 900, python=python)
    return dict(json.loads(printed.splitlines()[-1]))


def no_records(folder: Path) -> Path:
    """Return an empty store of tuning records in a folder."""
    path = folder / "none.db"
    if not path.exists():
        with open_store(path):
            pass
    return path


def run_alone(
    command: Sequence[object],
    *,
    threads: int,
    patience_s: float,
    python: Path = Path(sys.executable),
) -> tuple[str, int]:
    """Run Python with ``command``; return what it printed, and its largest size in KiB.

    Raises
    ------
    StepError
        It exited with an error, or took longer than ``patience_s`` seconds.
    """
    environment = {**os.environ, "TVM_NUM_THREADS": str(threads)}
    line = [str(python), *map(str, command)]
    began = time.monotonic()
    # Into files: nobody reads a pipe while wait4 waits.
    with tempfile.TemporaryFile("w+") as out, tempfile.TemporaryFile("w+") as errors:
        process = subprocess.Popen(line, stdout=out, stderr=errors, env=environment)
        timer = threading.Timer(patience_s, os.kill, (process.pid, signal.SIGKILL))
        timer.daemon = True
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
        process.returncode = os.waitstatus_to_exitcode(status)
        out.seek(0)
        errors.seek(0)
        if process.returncode == 0:
            return out.read(), usage.ru_maxrss
        lines = errors.read().strip().splitlines() or [f"exit code {process.returncode}"]
    if time.monotonic() - began >= patience_s:
        raise StepError("timed out", f"not done after {patience_s:.0f} s")
    raise StepError("refused" if process.returncode == 2 else "failed", lines[-1])

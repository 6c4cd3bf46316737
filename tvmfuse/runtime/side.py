"""One side of a benchmark, as its driver sees it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from tvmfuse.errors import TuningError
from tvmfuse.runtime import worker

_THREAD_VARIABLES = (
    "TVM_NUM_THREADS",
    "OMP_NUM_THREADS",
    "OPENBLAS_NUM_THREADS",
    "MKL_NUM_THREADS",
)


@dataclass(frozen=True)
class Side:
    """One way to run a model.

    Parameters
    ----------
    name : str
        What a person calls it.
    command : tuple of str
        Starts a process that speaks the protocol of :mod:`tvmfuse.runtime.worker`.
    threads : int
        Threads that it may use; its environment says so in the usual variables.
    """

    name: str
    command: tuple[str, ...]
    threads: int


def python_side(
    name: str,
    model: Path,
    inputs: Path,
    *,
    threads: int,
    python: str = sys.executable,
    loader: str = "",
) -> Side:
    """Return a side that :mod:`tvmfuse.runtime.worker` can load.

    Parameters
    ----------
    name : str
        A key of ``worker.SIDES``; any where ``loader`` is given.
    model : Path
        An ONNX file, or for ``tvmfuse`` also a bundle.
    inputs : Path
        The inputs by name, as :mod:`tvmfuse.runtime.npz` writes them.
    threads : int
        Threads that it may use.
    python : str
        The interpreter: that of another environment where the side needs one.
    loader : str
        What loads the model where its name does not say: a key of ``worker.SIDES``, or a
        Python file with a function ``load``.
    """
    # -P: the folder of the worker holds modules that are not meant to be top-level.
    command = (python, "-P", str(Path(worker.__file__)))
    arguments = (loader or name, str(model), str(inputs), "--threads", str(threads))
    return Side(name, command + arguments, threads)


class Worker:
    """The running process of a side; made by :func:`start`."""

    def __init__(self, side: Side, process: subprocess.Popen[str], errors: IO[str]) -> None:
        self._side = side
        self._process = process
        self._errors = errors

    def times_us(self, calls: int, *, timeout_s: float) -> list[float]:
        """Run the model ``calls`` times and return the time of each call.

        Raises
        ------
        TuningError
            The process ended, or did not answer in time.
        """
        return list(self.ask({"calls": calls}, timeout_s=timeout_s)["us"])

    def load(self, model: Path, inputs: Path, *, timeout_s: float) -> str:
        """Have it let go of its model and load another one; return its version.

        Raises
        ------
        TuningError
            The process ended, or did not answer in time.
        """
        request = {"model": str(model), "inputs": str(inputs)}
        return str(self.ask(request, timeout_s=timeout_s)["version"])

    def ask(self, request: Mapping[str, Any] | None, *, timeout_s: float) -> dict[str, Any]:
        """Send a request, if there is one, and wait for the answer."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        timer = threading.Timer(timeout_s, self._process.kill)
        begun = time.monotonic()
        timer.daemon = True  # an interrupt between these lines must not wait for it
        try:
            timer.start()
            if request is not None:
                self._process.stdin.write(json.dumps(request) + "\n")
                self._process.stdin.flush()
            answer = self._process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        finally:
            timer.cancel()
        if not answer:
            is_late = time.monotonic() - begun >= timeout_s
            end = f"gave no answer within {timeout_s:g} s" if is_late else "failed"
            raise TuningError(f"bench: {self._side.name} {end} {self._last_words()}")
        return dict(json.loads(answer))

    def _last_words(self) -> str:
        code = self._process.wait()
        self._errors.seek(0)
        lines = self._errors.read().split("\n")
        said = next((line.strip() for line in reversed(lines) if line.strip()), "nothing")
        return f"(exit {code}); it said: {said}"


@contextmanager
def start(side: Side, *, timeout_s: float) -> Iterator[tuple[Worker, str]]:
    """Start a side and yield it, with its version, once its model is loaded.

    Raises
    ------
    TuningError
        It could not be started, or could not load its model in time.
    """
    variables = dict.fromkeys(_THREAD_VARIABLES, str(side.threads))
    with tempfile.TemporaryFile("w+", errors="replace") as errors:
        try:
            process = subprocess.Popen(
                side.command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                env={**os.environ, **variables},
            )
        except OSError as error:
            raise TuningError(f"bench: cannot start {side.name}: {error}") from error
        with process:
            try:
                worker = Worker(side, process, errors)
                yield worker, str(worker.ask(None, timeout_s=timeout_s)["version"])
            finally:
                process.kill()
                process.communicate()  # unlike leaving the block, it minds no request left unread

"""A worker process that may crash, hang or stop without hanging the one that asks."""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

import tvmfuse

# -P: the working folder may hold a module that hides one of ours.
_COMMAND = (sys.executable, "-P", "-m", "tvmfuse.tuning.worker")
_ROOT = Path(tvmfuse.__file__).parents[1]  # need not be installed
_CHUNK = 1 << 16


class WorkerLost(Exception):  # noqa: N818 - becomes a failure record
    """The process is gone or did not answer in time, and was killed.

    Parameters
    ----------
    status : str
        What its candidate's record says.
    reason : str
        What happened, and the last that it said.
    is_killed : bool
        Whether somebody else killed it.
    """

    def __init__(self, status: str, reason: str, *, is_killed: bool = False) -> None:
        super().__init__(reason)
        self.status, self.reason, self.is_killed = status, reason, is_killed


class WorkerProcess:
    """One process that answers lines of JSON with lines of JSON.

    It leads a process group of its own, which is killed as a whole. It leaves no files: TVM
    generates code for a CPU in memory.

    Parameters
    ----------
    threads : int
        Threads of TVM's pool in it.
    command : tuple of str
        Starts it; this process's id is added as the last argument.
    """

    def __init__(self, *, threads: int, command: tuple[str, ...] = _COMMAND) -> None:
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115 - see close
        variables = {
            "TVM_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join([str(_ROOT), os.environ.get("PYTHONPATH", "")]),
        }
        self._process = subprocess.Popen(
            (*command, str(os.getpid())),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env={**os.environ, **variables},
            start_new_session=True,
            bufsize=0,
        )
        for pipe in (self._stdin, self._stdout):
            os.set_blocking(pipe.fileno(), False)
        self._received = b""

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def ask(self, request: Mapping[str, Any] | None, *, timeout_s: float) -> dict[str, Any]:
        """Send a request, if there is one, and wait for the next answer.

        Raises
        ------
        WorkerLost
            It crashed, or did not answer in time; it is dead then.
        """
        text = b"" if request is None else json.dumps(request).encode() + b"\n"
        deadline = time.monotonic() + timeout_s
        try:
            return _answer(self._exchange(text, deadline))
        except (BrokenPipeError, EOFError):
            reason = self._last_words()
            is_killed = self._process.returncode == -signal.SIGKILL
            raise WorkerLost("crash", reason, is_killed=is_killed) from None
        except TimeoutError:
            self.close()
            raise WorkerLost("timeout", f"no answer within {timeout_s:g} s") from None
        except ValueError as error:  # an answer cut short, or none of ours
            self.close()
            raise WorkerLost("crash", f"an answer that cannot be read: {error}") from None

    def close(self) -> None:
        """Kill it with all that it started."""
        if self._process.returncode is None:
            with suppress(ProcessLookupError):  # it ended by itself
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        for file in (self._stdin, self._stdout, self._errors):
            file.close()

    @property
    def _stdin(self) -> IO[bytes]:
        assert self._process.stdin is not None
        return self._process.stdin

    @property
    def _stdout(self) -> IO[bytes]:
        assert self._process.stdout is not None
        return self._process.stdout

    def _exchange(self, text: bytes, deadline: float) -> bytes:
        """Write all of ``text`` and read one line; neither waits for a process that hangs."""
        with selectors.DefaultSelector() as selector:
            selector.register(self._stdout, selectors.EVENT_READ)
            if text:
                selector.register(self._stdin, selectors.EVENT_WRITE)
            while b"\n" not in self._received or text:
                left = deadline - time.monotonic()
                ready = selector.select(max(0.0, left))
                if not ready and left <= 0:
                    raise TimeoutError
                for selected, _ in ready:
                    if selected.fileobj is self._stdin:
                        text = text[os.write(self._stdin.fileno(), text[:_CHUNK]) :]
                        if not text:
                            selector.unregister(self._stdin)
                        continue
                    received = os.read(self._stdout.fileno(), _CHUNK)
                    if not received:
                        raise EOFError
                    self._received += received
        line, _, self._received = self._received.partition(b"\n")
        return line

    def _last_words(self) -> str:
        try:
            code = self._process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            code = None  # it closed its pipes and goes on; closing kills it
        self._errors.seek(0)
        lines = [line.strip() for line in self._errors.read().splitlines() if line.strip()]
        self.close()
        how = f"signal {-code}" if code is not None and code < 0 else f"exit {code}"
        return f"the worker ended ({how}); it said: {lines[-1] if lines else 'nothing'}"


def _answer(line: bytes) -> dict[str, Any]:
    """Return an answer, or raise ValueError where the line is none."""
    answer = json.loads(line)
    if not isinstance(answer, dict) or "status" not in answer:
        raise ValueError(f"it has no status: {line[:80]!r}")
    return answer

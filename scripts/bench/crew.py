"""The processes of all sides of a benchmark, one each."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from sides import Peer

from tvmfuse.errors import TuningError
from tvmfuse.runtime.side import Worker, python_side, start


class Crew:
    """Processes that load one model after the other; all end with the ``with`` block.

    Parameters
    ----------
    threads : int
        Threads of each.
    patience_s : float
        Longest time to wait for one answer, compiling included.
    """

    def __init__(self, *, threads: int, patience_s: float) -> None:
        self.threads = threads
        self.patience_s = patience_s
        self._running: dict[str, tuple[Worker, ExitStack]] = {}

    def __enter__(self) -> Crew:
        """Return it; no process runs yet."""
        return self

    def __exit__(self, *_: object) -> None:
        """End every process."""
        for name in list(self._running):
            self.dismiss(name)

    def load(self, peer: Peer, model: Path, inputs: Path) -> tuple[Worker, str]:
        """Return a side's process and version, once it has loaded a model.

        Raises
        ------
        TuningError
            It could not be started, or could not load the model in time.
        """
        try:
            if peer.name in self._running:
                worker, _ = self._running[peer.name]
                return worker, worker.load(model, inputs, timeout_s=self.patience_s)
            side = python_side(
                peer.name,
                model,
                inputs,
                threads=self.threads,
                python=str(peer.python),
                loader=peer.loader,
            )
            with ExitStack() as stack:
                worker, version = stack.enter_context(start(side, timeout_s=self.patience_s))
                self._running[peer.name] = worker, stack.pop_all()
        except TuningError:
            self.dismiss(peer.name)
            raise
        return worker, version

    def dismiss(self, name: str) -> None:
        """End the process of a side, if it has one."""
        if name in self._running:
            _, stack = self._running.pop(name)
            stack.close()

"""Time the stages, and tell which one runs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from tvmfuse.passes import verify

Progress = Callable[[str], None]


class Stages:
    """Times each stage and tells the user which one runs."""

    def __init__(self, progress: Progress | None = None, *, verify: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress
        self._verify = verify

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self._progress is not None:
            self._progress(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def returned(self, name: str, mod: Any) -> None:
        """Check what a stage returned, where that is wanted."""
        if self._verify:
            with self.stage("verify"):
                verify.check(mod, name)

"""Name the machine that a number was measured on."""

from __future__ import annotations

import platform
from typing import Any

import psutil

from tvmfuse.host import detect


def describe() -> dict[str, Any]:
    """Return processor, cores, memory, load and system as JSON-compatible data.

    ``load`` is the number of runnable threads, averaged over the last minute: a
    number measured on a busy machine should say so.
    """
    host = detect()
    return {
        "processor": host.model or host.arch,
        "arch": host.arch,
        "cores": host.cores,
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load": round(psutil.getloadavg()[0], 2),
        "system": platform.platform(terse=True),
        "python": platform.python_version(),
    }

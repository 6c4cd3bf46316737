"""Let TVM use every core.

TVM 0.27 starts half as many threads as the system has processors, taking every
second one for a hyper-thread. On machines without them, and in most virtual
machines, half of the cores then idle. ``TVM_NUM_THREADS`` decides, where it is set.

It also ties its n-th worker to the n-th core, in every process alike: several
processes on one machine then share the first cores, while the others idle. The
system spreads them better; ``TVM_BIND_THREADS=1`` brings the old way back.

And each thread that calls a kernel gets threads of its own: callers that run at once share
the cores by turns.
"""

from __future__ import annotations

import functools
import os
import threading

from tvmfuse.host import detect

VARIABLE = "TVM_NUM_THREADS"


def in_use() -> int:
    """Return how many threads TVM's pool has; ``TVM_NUM_THREADS`` sets it."""
    from tvmfuse._tvm import tvm_ffi

    return int(tvm_ffi.get_global_func("runtime.NumThreads")())


def at_once() -> int:
    """Return how many models may run at once: as many as there are cores for their threads."""
    return max(1, detect().cores // in_use())


@functools.cache  # one for the process: its cores are what is shared
def turns() -> threading.Semaphore | threading.Lock:
    """Return what lets :func:`at_once` models run, to be held by each while it does."""
    # For one, a lock: a semaphore is written in Python, and takes as long as a small kernel.
    return threading.Lock() if at_once() == 1 else threading.Semaphore(at_once())


def use_all_cores() -> None:
    """Ask for one free thread on each core, unless the user has asked for something else.

    It has to be called before the first kernel runs: TVM reads the variables once.
    """
    if "OMP_NUM_THREADS" not in os.environ:  # TVM honours this one too
        os.environ.setdefault(VARIABLE, str(detect().cores))
    os.environ.setdefault("TVM_BIND_THREADS", "0")

"""A measuring worker with a fault: ``faulty.py FAULT PARENT``.

The fault strikes on a candidate that unrolls by 8; all others are measured truly.
"""

from __future__ import annotations

import ctypes
import os
import resource
import signal
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from tests.tuning.kernels import product
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import families
from tvmfuse.tuning.worker import Bench, main

UNROLL = 8
REPLIES = os.dup(1)  # the worker itself sends what is printed to standard error


def crash() -> None:
    ctypes.string_at(0)


def leave() -> None:
    os._exit(7)


def hang_with_the_gil() -> None:
    ctypes.PyDLL(None).sleep(600)


def say_nonsense() -> None:
    os.write(REPLIES, b'{"times_us": [0.1]}\n')


def say_half() -> None:
    os.write(REPLIES, b'{"status": "o\n')


def stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def run_out_of_memory() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (2**20, 2**20))
    bytearray(2**30)


LOST: Mapping[str, Callable[[], None]] = {
    "crash": crash,
    "leave": leave,
    "hang_with_the_gil": hang_with_the_gil,
    "stop": stop,
    "run_out_of_memory": run_out_of_memory,
    "say_nonsense": say_nonsense,
    "say_half": say_half,
}
SAID: Mapping[str, list[float]] = {
    "nan": [float("nan")],
    "negative": [-1.0],
    "zero": [1.0, 0.0],
    "infinite": [float("inf")],
    "no_times": [],
}


def wrong(function: Any, machine: Any, choose: Any) -> Any:
    taken = families.schedule(function, machine, choose)
    return families.schedule(product(sign=-1.0), machine) if _strikes(choose) else taken


def refuse(function: Any, machine: Any, choose: Any) -> Any:
    if _strikes(choose):
        raise LoweringError("made up: this cannot be built")
    return families.schedule(function, machine, choose)


def _strikes(choose: Any) -> bool:
    # A bound method of the recorder, which knows what it is to take.
    return choose("unroll", (1, 2, 4, UNROLL), default=1) == UNROLL


SCHEDULES = {"wrong": wrong, "refuse": refuse}


class Faulty(Bench):
    def __init__(self, fault: str) -> None:
        super().__init__(SCHEDULES.get(fault, families.schedule))
        self._fault = fault

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        if "try" in request and request["try"]["decisions"].get("unroll") == UNROLL:
            if self._fault in SAID:
                return {"status": "ok", "times_us": SAID[self._fault]}
            LOST.get(self._fault, lambda: None)()
        return super().answer(request)


if __name__ == "__main__":
    main(Faulty(sys.argv[1]))

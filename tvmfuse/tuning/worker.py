"""Builds, checks and times candidates, in a process of its own.

Run as ``python -m tvmfuse.tuning.worker PARENT``. It reads one JSON object a line and
answers each with one: ``{"load": {...}}`` makes a kernel the present one and computes what
it must give; ``{"try": {...}}`` schedules it by some decisions, builds, compares and times
it; ``{"build": {...}}`` only builds it, into a folder. The process may crash or hang with any
candidate: its parent kills and replaces it.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, Any, Protocol

from tvmfuse._tvm import registers, tvm
from tvmfuse._tvm.failures import FAILURES
from tvmfuse.errors import TvmFuseError
from tvmfuse.kernels import families, traces
from tvmfuse.kernels.choices import Recorder, by_default
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.codegen import one_line
from tvmfuse.tuning.arrays import SCALES, Array, arguments, difference
from tvmfuse.tuning.libraries import Libraries
from tvmfuse.tuning.space import TRACE, toward
from tvmfuse.tuning.timing import Arguments, times_us

_BUILD_ERROR, _RUN_ERROR, _WRONG = "build_error", "run_error", "wrong"
_MOST_KEPT_BYTES = 1 << 30
_PR_SET_PDEATHSIG = 1

Schedule = Callable[..., families.Scheduled]


class Failed(Exception):  # noqa: N818 - an answer, not a fault of the worker
    """A candidate cannot be used."""

    def __init__(self, status: str, reason: str) -> None:
        super().__init__(reason)
        self.status, self.reason = status, reason


@dataclass(frozen=True)
class Kernel:
    """The present kernel and what it must compute.

    Parameters
    ----------
    text : str
        TVM's JSON of its module; read anew for each candidate, as scheduling may change it.
    family : str
        The family that its decisions belong to.
    machine : Machine
        What schedules may count on.
    target : tvm.target.Target
        What it is compiled for.
    default : (Mapping, library), optional
        The zero-trial kernel: its decisions and its code.
    cases : tuple of (arguments, results)
        Arguments, and all of them after the zero-trial kernel ran.
    libraries : Libraries, optional
        Where candidates are kept once they are built.
    """

    text: str
    family: str
    machine: Machine
    target: Any
    default: tuple[Mapping[str, Any], Any] | None = None
    cases: tuple[tuple[list[Array], list[Array]], ...] = ()
    libraries: Libraries | None = None

    @property
    def identity(self) -> str:
        """What tells it from others that are scheduled by the same decisions."""
        return f"{self.text} {self.family} {self.machine} {self.target}"

    @property
    def n_bytes(self) -> int:
        """Bytes of its arguments and results."""
        return sum(array.nbytes for case in self.cases for arrays in case for array in arrays)


class Bench:
    """Answers requests; ``schedule`` is :func:`families.schedule` but in tests of faults."""

    def __init__(self, schedule: Schedule = families.schedule) -> None:
        self._schedule = schedule
        self._kernel: Kernel | None = None
        self._arguments: Arguments | None = None
        self._kept: dict[tuple[str, str], Kernel] = {}  # a search goes from kernel to kernel

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what one request asks."""
        try:
            if "load" in request:
                self._kernel = self._arguments = None
                self._kernel = self._known(request["load"])
                return {"status": "ok"}
            if "build" in request:
                return {"status": "ok", "decisions": self._built(**request["build"])[0]}
            return self._tried(**request["try"])
        except Failed as failed:
            return {"status": failed.status, "reason": failed.reason}

    def _known(self, load: Mapping[str, Any]) -> Kernel:
        """Return a kernel, from those that were loaded before where it is one of them."""
        key = (load["module"], load["family"])
        kernel = self._kept.pop(key, None) or self._loaded(**load)
        self._kept[key] = kernel
        while (
            len(self._kept) > 1 and sum(k.n_bytes for k in self._kept.values()) > _MOST_KEPT_BYTES
        ):
            self._kept.pop(next(iter(self._kept)))  # the one that was asked for longest ago
        return kernel

    def _loaded(
        self,
        *,
        module: str,
        family: str,
        machine: Mapping[str, Any],
        target: Mapping[str, Any],
        seed: int,
        libraries: str | None,
    ) -> Kernel:
        kernel = Kernel(
            module,
            family,
            Machine(**machine),
            tvm.target.Target(dict(target)),
            libraries=None if libraries is None else Libraries(Path(libraries)),
        )
        recorder = by_default()
        library = _build(kernel, recorder, families.schedule)
        types = [
            (tuple(int(extent) for extent in param.ty.shape), str(param.ty.dtype))
            for param in tvm.ir.load_json(module)["main"].params
        ]
        cases = []
        for number, scale in enumerate(SCALES):
            inputs = arguments(types, scale=scale, seed=seed + number)
            cases.append((inputs, _run(library, inputs)))
        return replace(kernel, default=(recorder.taken, library), cases=tuple(cases))

    def _tried(self, *, decisions: Mapping[str, Any], cold: bool, **how: Any) -> dict[str, Any]:
        taken, library = self._built(decisions)
        assert self._kernel is not None
        assert self._kernel.default is not None
        _, default = self._kernel.default
        if library is not default:
            said = _wrong(library, self._kernel)
            if said:
                return {"status": _WRONG, "reason": said, "decisions": taken}
        if self._arguments is None:
            inputs, _ = self._kernel.cases[0]
            self._arguments = Arguments(inputs, is_cold=cold)
        times = times_us(library["main"], default["main"], self._arguments, **how)
        return {"status": "ok", "times_us": times, "decisions": taken}

    def _built(self, decisions: Mapping[str, Any]) -> tuple[Mapping[str, Any], Any]:
        """Return what was really decided, and the code."""
        kernel = self._kernel
        if kernel is None or kernel.default is None:
            raise Failed(_RUN_ERROR, "no kernel was loaded")
        if dict(decisions) == kernel.default[0]:
            return kernel.default
        if kernel.libraries is None:
            return self._compiled(kernel, decisions)
        known = kernel.libraries.find(kernel.identity, decisions)
        if known is not None:
            return known
        built = self._compiled(kernel, decisions)
        kernel.libraries.keep(kernel.identity, decisions, built)
        return built

    def _compiled(
        self, kernel: Kernel, decisions: Mapping[str, Any]
    ) -> tuple[Mapping[str, Any], Any]:
        if TRACE in decisions:
            function = tvm.ir.load_json(kernel.text)["main"]
            found = traces.replay(function, json.loads(decisions[TRACE]))
            return decisions, _compiled(kernel, found, traces.FAMILY)
        recorder = toward(decisions)
        library = _build(kernel, recorder, self._schedule)
        return recorder.taken, library


class Answering(Protocol):
    """What a worker process is made of."""

    def answer(self, request: Mapping[str, Any]) -> dict[str, Any]:
        """Do what one request asks."""
        ...


def serve(requests: IO[str], replies: IO[str], bench: Answering) -> None:
    """Answer requests until there are no more."""
    _reply(replies, {"status": "ready"})
    for line in requests:
        _reply(replies, bench.answer(json.loads(line)))


def main(bench: Answering | None = None) -> None:
    """Serve on standard input and output; what libraries print goes to standard error."""
    _die_with_parent(int(sys.argv[-1]))
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    serve(sys.stdin, replies, bench or Bench())


def _build(kernel: Kernel, recorder: Recorder, schedule: Schedule) -> Any:
    function = tvm.ir.load_json(kernel.text)["main"]
    try:
        found = schedule(function, kernel.machine, recorder.choose)
    except (*FAILURES, TvmFuseError) as error:
        raise Failed(_BUILD_ERROR, one_line(error)) from error
    return _compiled(kernel, found, kernel.family)


def _compiled(kernel: Kernel, found: families.Scheduled, family: str) -> Any:
    if found.family != family:
        raise Failed(_BUILD_ERROR, found.note or f"it is of the family {found.family}")
    module = tvm.IRModule({"main": found.function.with_attr("global_symbol", "main")})
    try:
        with kernel.target:
            return tvm.compile(module, kernel.target, tir_pipeline=registers.PIPELINE).mod
    except FAILURES as error:
        raise Failed(_BUILD_ERROR, one_line(error)) from error


def _wrong(library: Any, kernel: Kernel) -> str:
    """Say how a candidate computes something else than the zero-trial kernel, or return ""."""
    said = (difference(_run(library, inputs), expected) for inputs, expected in kernel.cases)
    return next(filter(None, said), "")


def _run(library: Any, inputs: list[Array]) -> list[Array]:
    """Run a kernel on copies of the inputs and return all arguments afterwards."""
    tensors = [_tensor(array) for array in inputs]
    try:
        library["main"](*tensors)
    except FAILURES as error:
        raise Failed(_RUN_ERROR, one_line(error)) from error
    return [tensor.numpy() for tensor in tensors]


def _tensor(array: Array) -> Any:
    return tvm.runtime.empty(array.shape, array.dtype.name, tvm.cpu()).copyfrom(array)


def _reply(replies: IO[str], answer: Mapping[str, Any]) -> None:
    replies.write(json.dumps(answer) + "\n")
    replies.flush()


def _die_with_parent(parent: int) -> None:
    """Let Linux kill this process with its parent, even while it hangs or is stopped."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:  # it is gone already
        sys.exit(1)


if __name__ == "__main__":
    main()

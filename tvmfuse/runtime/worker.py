"""One side of a benchmark, in a process of its own.

Run as a script, with ``python -P worker.py SIDE MODEL INPUTS.npz --threads N``: it
imports nothing of tvmfuse until the side asks for it, so that it also runs in an
environment that holds only NumPy and a peer. Once the model is loaded it writes
one line of JSON that says so. For each line ``{"calls": n}`` it then reads, it
calls the model n times and answers ``{"us": [...]}``, the time of each call; with
``"save": "file.npz"`` beside it, it keeps the outputs of the last call in that file.
For ``{"model": ..., "inputs": ...}`` it lets go of its model, loads that one, and
says so as at first.

SIDE is one of ``SIDES``, or a Python file whose function ``load`` is like theirs.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import runpy
import signal
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

_PR_SET_PDEATHSIG = 1

ALIGNMENT = 64  # bytes
Feeds = Mapping[str, np.ndarray[Any, Any]]
Call = Callable[[], Sequence[np.ndarray[Any, Any]]]  # runs the model, returns outputs in order
Load = Callable[[str, Feeds, int], tuple[Call, str]]  # model, inputs, threads; also its version
Open = Callable[[str, str], tuple[Call, str]]  # the same, of the paths of model and inputs


def load_tvmfuse(model: str, feeds: Feeds, threads: int) -> tuple[Call, str]:
    """Load a bundle, or compile an ONNX file; the driver sets ``TVM_NUM_THREADS``."""
    # As a script this file knows no package; the folder it lies in may not be installed.
    sys.path.append(str(Path(__file__).parents[2]))
    import tvmfuse
    from tvmfuse._tvm.versions import installed

    if model.endswith(".onnx"):
        session = tvmfuse.Session.of(tvmfuse.compile(model))
    else:
        session = tvmfuse.load(model)
    return lambda: session.run(None, feeds), f"tvm {installed()[0]}"


def load_onnxruntime(model: str, feeds: Feeds, threads: int) -> tuple[Call, str]:
    """Load an ONNX file with the defaults of ONNX Runtime, but for its threads."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    return lambda: session.run(None, feeds), f"onnxruntime {onnxruntime.__version__}"


SIDES: Mapping[str, Load] = {"tvmfuse": load_tvmfuse, "onnxruntime": load_onnxruntime}


def serve(load: Open, model: str, inputs: str, *, replies: TextIO) -> None:
    """Load a model, then call, time and load as standard input asks, until it ends.

    Parameters
    ----------
    load : callable
        Loads a model.
    model, inputs : str
        The paths of the first model and of its inputs.
    replies : text file
        Where the driver listens.
    """
    call, version = load(model, inputs)
    _reply(replies, {"version": version})
    for line in sys.stdin:
        request = json.loads(line)
        if "model" in request:
            del call  # two models at once may be more than fits
            call, version = load(request["model"], request["inputs"])
            _reply(replies, {"version": version})
            continue
        times_us = []
        for _ in range(request["calls"]):
            start = time.perf_counter_ns()
            outputs = call()
            times_us.append((time.perf_counter_ns() - start) / 1e3)
        if "save" in request:
            np.savez(request["save"], *outputs)
        _reply(replies, {"us": times_us})


def main(sides: Mapping[str, Load] = SIDES) -> None:
    """Load the side that the command line names, and serve."""
    parser = argparse.ArgumentParser()
    parser.add_argument("side", help=f"{', '.join(sides)}, or a Python file")
    parser.add_argument("model")
    parser.add_argument("inputs")
    parser.add_argument("--threads", type=int, required=True)
    arguments = parser.parse_args()
    _die_with_parent()
    replies = _private_stdout()
    load_feeds = sides.get(arguments.side) or runpy.run_path(arguments.side)["load"]

    def load(model: str, inputs: str) -> tuple[Call, str]:
        with np.load(inputs, allow_pickle=False) as file:
            feeds = {name: aligned(file[name]) for name in file.files}
        return load_feeds(model, feeds, arguments.threads)

    serve(load, arguments.model, arguments.inputs, replies=replies)


def _die_with_parent() -> None:
    """Let Linux end this process with its driver, even while it loads a model."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


def aligned(array: np.ndarray[Any, Any]) -> np.ndarray[Any, Any]:
    """Return a copy that begins at a cache line, as the tensors of frameworks do.

    No side then copies its inputs at every call only because of where they lie.
    """
    memory = np.empty(array.nbytes + ALIGNMENT, np.uint8)
    offset = -memory.ctypes.data % ALIGNMENT
    copy = np.ndarray(array.shape, array.dtype, memory.data, offset)
    copy[...] = array
    return copy


def _private_stdout() -> TextIO:
    """Return standard output, and send what libraries print to standard error."""
    replies = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    return replies


def _reply(replies: TextIO, answer: Mapping[str, Any]) -> None:
    replies.write(json.dumps(answer) + "\n")
    replies.flush()


if __name__ == "__main__":
    main()

"""Import TVM's tensor intrinsics in seconds instead of minutes.

In TVM 0.27, importing ``tvm.s_tir.tensor_intrin`` parses some hundred
``@T.prim_func`` definitions, and each one calls :func:`inspect.stack`, which
searches every loaded module for the source of every frame: 25 to 100 seconds
of CPU. MetaSchedule repeats that import in each builder and runner worker,
where it eats the default time-out of 30 seconds. TVM looks only at the frames
themselves, so a plain walk over them serves it as well.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Iterator
from contextlib import contextmanager


def import_tensor_intrinsics() -> None:
    """Import ``tvm.s_tir.tensor_intrin``, quickly.

    Call it before the first ``TuneContext``, and in each worker through
    ``LocalBuilder(initializer=...)`` and ``LocalRunner(initializer=...)``.
    """
    with _plain_stack():
        importlib.import_module("tvm.s_tir.tensor_intrin")


@contextmanager
def _plain_stack() -> Iterator[None]:
    original = inspect.stack
    inspect.stack = _stack
    try:
        yield
    finally:
        inspect.stack = original


def _stack(context: int = 1) -> list[inspect.FrameInfo]:
    """Return the callers as :func:`inspect.stack` does, without their source."""
    frame = sys._getframe(1)
    frames = []
    while frame is not None:
        code = frame.f_code
        frames.append(
            inspect.FrameInfo(frame, code.co_filename, frame.f_lineno, code.co_name, None, None)
        )
        frame = frame.f_back  # type: ignore[assignment]
    return frames

"""Small kernels to tune, and a measurer whose times are made up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from tvmfuse._tvm import te
from tvmfuse.kernels import families, gemm
from tvmfuse.kernels.tiling import Machine
from tvmfuse.store import keys
from tvmfuse.tuning.measure import Trial
from tvmfuse.tuning.space import Point, explore
from tvmfuse.tuning.task import Task

MACHINE = Machine(lanes=8, registers=16, cores=2, l2_bytes=1 << 19)


def product(rows: int = 32, depth: int = 24, columns: int = 48, *, sign: float = 1.0) -> Any:
    """Return an unscheduled matrix product; with a sign of -1, the negative one."""
    x, y = te.placeholder((rows, depth), name="x"), te.placeholder((depth, columns), name="y")
    result = gemm.emit_batched(x, y, MACHINE)
    signed = te.compute(result.shape, lambda *i: result[i] * sign, name="signed")
    return te.create_prim_func([x, y, signed])


def task(function: Any | None = None, *, uses: int = 1, name: str = "product") -> Task:
    """Return the task of a kernel."""
    kernel = product() if function is None else function
    space = explore(lambda recorder: families.schedule(kernel, MACHINE, recorder.choose))
    family = families.family_of(kernel)
    return Task((name,), family, keys.workload(kernel), uses, steps=1, space=space)


@dataclass
class MadeUp:
    """Says how long a candidate takes instead of running it."""

    time_us: Callable[[Point], float | None]
    asked: list[Point] = field(default_factory=list)

    def __call__(self, task: Task, decisions: Point, **_: float | None) -> Trial:
        """Return a made-up trial."""
        self.asked.append(decisions)
        time_us = self.time_us(decisions)
        if time_us is None:
            return Trial(decisions, "crash", reason="made up")
        return Trial(decisions, "measured", (time_us,))

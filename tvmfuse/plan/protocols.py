"""What the stages ask of a cost model, a measurement and a tuning store; what a device can do."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

from tvmfuse.plan.choice import Candidate, RunTime


@dataclass(frozen=True)
class Peaks:
    """What a device can do at best; the roofline's numbers.

    Parameters
    ----------
    gflops : float
        Float32 multiply-add throughput of all cores, in GFLOP/s.
    bandwidth_gbps : Mapping of str to float
        Read bandwidth of all cores per level ("l1", "l2", "l3", "dram"), in GB/s.
        GPUs have "l2" and "dram" only.
    cache_bytes : Mapping of str to int
        Capacity per level, in bytes; "l1" and "l2" of one core.
    dispatch_us : float
        Time to start one kernel, in microseconds.
    cores : int
        Cores (CPU) or multiprocessors (GPU).
    source : str
        "measured" by calibrate, or "default".
    """

    gflops: float
    bandwidth_gbps: Mapping[str, float]
    cache_bytes: Mapping[str, int] = field(default_factory=dict)
    dispatch_us: float = 1.0
    cores: int = 1
    source: str = "default"


class CostModel(Protocol):
    """Predicts what fusing is worth."""

    def predict(self, candidate: Candidate) -> RunTime:
        """Return the run times of ``candidate`` fused and unfused."""
        ...


@runtime_checkable
class BatchCostModel(CostModel, Protocol):
    """Predicts many candidates at once, which is quicker than one by one."""

    def predict_all(self, candidates: Sequence[Candidate]) -> Sequence[RunTime]:
        """Return the run times of each candidate, in order."""
        ...


class Measure(Protocol):
    """Measures candidates on the device."""

    def __call__(
        self, candidates: Sequence[Candidate], *, budget_us: float
    ) -> Sequence[RunTime | None]:
        """Return the measured run times of candidates, in order.

        None for one that failed, or that the budget left no time for.
        """
        ...


@dataclass(frozen=True)
class Tuned:
    """How a tuning record schedules a kernel.

    Parameters
    ----------
    decisions : Mapping
        Those of its family.
    trace : sequence, optional
        TVM's trace as JSON, in place of decisions; its blocks are called as in the kernel.
    note : str
        What a report should say of it, or "".
    """

    decisions: Mapping[str, Any] = field(default_factory=dict)
    trace: Sequence[Any] | None = None
    note: str = ""


class Records(Protocol):
    """Looks tuning records up for exactly one device."""

    def best(self, family: str, kernel: Any) -> Tuned | None:
        """Return what the best record of an unscheduled kernel says, or None."""
        ...

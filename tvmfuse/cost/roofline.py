"""The roofline prior: run times from peaks and amounts of work, in microseconds.

The form follows XLA's GPU performance model (compute and memory time overlap but
for a small part) and the roofline of Williams et al., with the cache level chosen
by the working set as in Roller and Welder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tvmfuse.cost import chained, kernel, memory
from tvmfuse.cost.kernel import Kernel
from tvmfuse.plan import Candidate, OpKind, Peaks, RunTime

# Part of the peak that kernels reach, by those of tuning_logs/measurements. The peak counts
# fused multiply-adds, two operations each; elementwise code has few of them and long
# dependency chains.
_EFFICIENCY: Mapping[OpKind, float] = {
    "matmul": 0.7,
    "conv": 0.6,
    "pooling": 0.06,
    "reduction": 0.08,
    "elementwise": 0.25,
    "broadcast": 0.25,
    "injective": 0.1,
    "view": 1.0,
    "opaque": 0.1,
}

# Part of the shorter of compute and memory time that hides behind the longer: XLA's.
_OVERLAP = 0.95

# A stored line is fetched for ownership before it is written back.
_STORE_COST = 2

# Part of a CPU's bandwidth that kernels reach, by the same: it was measured by reading in
# long unrolled loops, while they write as well and have gone cold. Transposes jump.
_BANDWIDTH = 0.4
_MOVING = 0.25

# A gain below this part of the unfused time is within the model's error.
_DOUBT = 0.4

# Outputs that keep one core busy; fewer are not worth another core.
_GRAIN = 256


@dataclass(frozen=True)
class Roofline:
    """Predicts run times from a device's peaks; a cost model without training.

    Parameters
    ----------
    peaks : Peaks
        Of the device, measured by ``calibrate`` or estimated.
    """

    peaks: Peaks

    def predict(self, candidate: Candidate) -> RunTime:
        """Return the run time of a candidate as one kernel and as many, in µs."""
        together = chained.work(candidate.graph, family=candidate.family)
        apart = kernel.apart(candidate.graph, without=candidate.recomputes)
        unfused_us = sum(map(self.kernel_us, apart))
        return RunTime(
            fused_us=sum(map(self.kernel_us, together)),
            unfused_us=unfused_us,
            doubt_us=_DOUBT * unfused_us,
        )

    def kernel_us(self, work: Kernel) -> float:
        """Return the run time of one kernel: dispatch, compute and memory, in µs."""
        compute_us, memory_us = self.compute_us(work), self.memory_us(work)
        hidden_us = _OVERLAP * min(compute_us, memory_us)
        busy = min(max(1.0, work.parallelism / _GRAIN), self.peaks.cores) / self.peaks.cores
        return work.launches * self.peaks.dispatch_us + (compute_us + memory_us - hidden_us) / busy

    def compute_us(self, work: Kernel) -> float:
        """Return the time of a kernel's arithmetic on all cores, in µs."""
        return sum(
            flops / (self.peaks.gflops * _EFFICIENCY[kind] * 1e3)
            for kind, flops in work.flops.items()
        )

    def memory_us(self, work: Kernel) -> float:
        """Return the time to move a kernel's bytes with all cores, in µs.

        Activations lie where the kernel's working set fits: the kernel before has
        just left them there. Constants were pushed outwards by the rest of the
        model since they were last read, so they come from the last cache or memory.
        """
        near = memory.bandwidth_gbps(self.peaks, work.total_bytes)
        far = memory.bandwidth_gbps(self.peaks, work.constant_bytes, last_cache_only=True)
        moved = work.activation_bytes + _STORE_COST * work.written_bytes
        reached = _BANDWIDTH if "l1" in self.peaks.bandwidth_gbps else 1.0  # GPUs have none
        if work.is_jumping:
            reached *= _MOVING
        return (moved / near + work.constant_bytes / far) / reached / 1e3

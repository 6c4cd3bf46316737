"""The roofline prior: run times from peaks and amounts of work, in microseconds.

The form follows XLA's GPU performance model (compute and memory time overlap but
for a part) and the roofline of Williams et al., with the cache level chosen by the
working set as in Roller and Welder.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tvmfuse.cost import chained, kernel, memory
from tvmfuse.cost.alike import once
from tvmfuse.cost.kernel import Kernel
from tvmfuse.cost.rates import Rates
from tvmfuse.plan import Candidate, Peaks, RunTime

# A stored line is fetched for ownership before it is written back.
STORE_COST = 2

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
    rates : Rates
        What kernels reach of them.
    """

    peaks: Peaks
    rates: Rates = field(default_factory=Rates)

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

    def predict_all(self, candidates: Sequence[Candidate]) -> list[RunTime]:
        """Return the run times of candidates, in order."""
        return once(candidates, lambda unlike: [self.predict(c) for c in unlike])

    def kernel_us(self, work: Kernel) -> float:
        """Return the run time of one kernel: start, compute and memory, in µs."""
        compute_us, memory_us = self.compute_us(work), self.memory_us(work)
        shorter, longer = sorted((compute_us, memory_us))
        busy_us = longer + self.rates.exposed * shorter
        return work.launches * self._start_us(work) + busy_us / busy_share(work, self.peaks)

    def compute_us(self, work: Kernel) -> float:
        """Return the time of a kernel's arithmetic on all cores, in µs."""
        efficiency = self.rates.efficiency
        full = sum(amount / efficiency[kind] for kind, amount in work.effort.items())
        return full / (self.peaks.gflops * 1e3)

    def memory_us(self, work: Kernel) -> float:
        """Return the time to move a kernel's bytes with all cores, in µs.

        Activations lie where the kernel's working set fits: the kernel before has
        just left them there. Constants were pushed outwards by the rest of the
        model since they were last read, so they come from the last cache or memory.
        """
        if not has_cores(self.peaks):
            near = memory.bandwidth_gbps(self.peaks, work.total_bytes)
            return (work.read_bytes + STORE_COST * work.written_bytes) / near / 1e3
        near = memory.bandwidth_gbps(self.peaks, work.total_bytes, reach=self.rates.reach)
        far = memory.bandwidth_gbps(self.peaks, work.constant_bytes, last_cache_only=True)
        store = min(near / STORE_COST, self.rates.store * self.peaks.bandwidth_gbps["dram"])
        moved = work.activation_bytes / near + work.written_bytes / store
        return (moved + work.constant_bytes / (far * self.rates.constants)) / 1e3

    def _start_us(self, work: Kernel) -> float:
        if not has_cores(self.peaks):
            return self.peaks.dispatch_us
        wake_us = self.rates.wake * self.peaks.dispatch_us if work.starts_threads else 0.0
        return self.rates.call_us + wake_us


def has_cores(peaks: Peaks) -> bool:
    """Whether a device is a CPU, whose threads have to be woken; a GPU's L1 is not listed."""
    return "l1" in peaks.bandwidth_gbps


def busy_share(work: Kernel, peaks: Peaks) -> float:
    """Return the share of the cores that a kernel keeps busy."""
    if has_cores(peaks) and not work.starts_threads:
        return 1.0 / peaks.cores
    return min(max(1.0, work.parallelism / _GRAIN), peaks.cores) / peaks.cores

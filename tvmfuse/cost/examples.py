"""What there is to learn from: measured kernels, equal ones as one."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass

from tvmfuse.cost import chained, extraction, kernel
from tvmfuse.cost.data import Measurements
from tvmfuse.cost.features import Features, Resources
from tvmfuse.cost.kernel import Kernel
from tvmfuse.cost.rates import Rates
from tvmfuse.errors import CostModelError
from tvmfuse.plan import OpGraph, Peaks


@dataclass(frozen=True)
class Example:
    """One kernel to learn from.

    Parameters
    ----------
    model, model_family : str
        Where it was measured.
    graph : OpGraph
        Its operators.
    parts : tuple of Kernel
        Its work, part by part where several kernels were joined.
    is_tuned : bool
        Whether a record gives its schedule.
    us : float
        Its run time, in microseconds: the median over the plans that it was in.
    noise : float
        Spread of its run time, as a share.
    resources : Resources, optional
        What an assembler reports of it, where it is a GPU's.
    """

    model: str
    model_family: str
    graph: OpGraph
    parts: tuple[Kernel, ...]
    is_tuned: bool
    us: float
    noise: float
    resources: Resources | None = None

    def row(self, peaks: Peaks, rates: Rates) -> Features:
        """Return its features, by a roofline of some rates."""
        return extraction.extract(
            *(self.graph, self.parts, peaks),
            rates=rates,
            is_tuned=self.is_tuned,
            resources=self.resources,
        )


def of(measured: Iterable[Measurements]) -> list[Example]:
    """Return the kernels of some runs, equal ones of a model as one.

    Raises
    ------
    CostModelError
        They are of several devices, targets or numbers of threads.
    """
    runs = list(measured)
    devices = {(r.run.device, r.run.target, r.run.threads) for r in runs}
    if len(devices) > 1:
        raise CostModelError(
            f"cost train: measurements must be of one device, target and number of threads, but "
            f"are of {', '.join(' '.join(map(str, d)) for d in sorted(devices))}"
        )
    times: defaultdict[tuple[str, str, str, str, OpGraph], list[tuple[float, float]]]
    times = defaultdict(list)
    resources = {}
    for run in runs:
        for k in run.kernels:
            graph = kernel.unplaced(k.graph)
            key = (k.model, k.model_family, k.family, k.schedule, graph)
            times[key].append((k.call_us, k.spread_us))
            resources[key] = k.resources
    found = []
    for key, taken in times.items():
        model, family, kernel_family, schedule, graph = key
        parts = chained.work(graph, family=kernel_family)
        if not parts:
            continue
        us = statistics.median(us for us, _ in taken)
        noise = statistics.median(spread / us for us, spread in taken)
        about = model, family, graph, parts, schedule == "tuned"
        found.append(Example(*about, us, noise, resources[key]))
    return found


def split(
    measured: Iterable[Measurements], held_out: Collection[str]
) -> tuple[list[Measurements], list[Measurements]]:
    """Part measurements into those to learn from and those of architectures held out."""
    seen: list[Measurements] = []
    unseen: list[Measurements] = []
    for found in measured:
        for side, is_held_out in ((seen, False), (unseen, True)):
            kernels = [k for k in found.kernels if (k.model_family in held_out) == is_held_out]
            plans = [p for p in found.plans if (p.model_family in held_out) == is_held_out]
            side.append(Measurements(found.run, tuple(kernels), tuple(plans)))
    return seen, unseen

"""Time the kernels of a model in their places, for the cost model to learn from."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from tvmfuse import _pipeline
from tvmfuse._tvm import threads
from tvmfuse.compiled import KernelInfo
from tvmfuse.cost.data import MeasuredKernel, Measurements, Run
from tvmfuse.frontend import Model
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.opgraph import Describer
from tvmfuse.plan import CostModel, FusionPlan, Records
from tvmfuse.runtime.samples import random_inputs
from tvmfuse.runtime.timing import quartiles
from tvmfuse.store.devices import device_of
from tvmfuse.store.records import now
from tvmfuse.store.versions import Versions
from tvmfuse.targets import Target
from tvmfuse.tuning import variants

_ROUNDS, _FEWEST_ROUNDS = 9, 3


def run_here(target: Target, *, device: str = "") -> Run:
    """Return what there is to know about measurements of a target on this machine.

    Parameters
    ----------
    target : Target
        What is compiled for.
    device : str, optional
        What to call the machine, where its processor's name will not do.
    """
    here, versions = device_of(target), Versions.installed()
    return Run(
        device=device or here.name,
        device_family=here.family,
        target=target.spec,
        threads=threads.in_use(),
        peaks=target.peaks,
        versions={"tvm": versions.tvm, "tvmfuse": versions.tvmfuse},
        created=now(),
    )


def timeable(
    module: Any, kernels: Mapping[str, KernelInfo], *, model: str, model_family: str
) -> Mapping[str, MeasuredKernel]:
    """Return what each kernel computes that is a group or an operator, with no time yet.

    Changes of layout are left out.

    Parameters
    ----------
    module : tvm.IRModule
        The canonical module that the kernels were made of.
    kernels : Mapping of str to KernelInfo
        By name.
    model, model_family : str
        The model, and the architectures that it belongs with.
    """
    describer = Describer(Dataflow.of("main", module["main"]))
    found = {}
    for name, info in kernels.items():
        if info.places and all(info.places):
            graph, places = describer.graph(info.places[0]), tuple(dict.fromkeys(info.places))
            about = model, model_family, "", info.pattern, info.family, info.schedule
            found[name] = MeasuredKernel(
                *about, graph, us=1.0, spread_us=0.0, calls=1, places=places
            )
    return found


def observe(
    model: Model,
    target: Target,
    *,
    cost_model: CostModel,
    records: Records | None,
    seconds: float,
) -> Measurements:
    """Time the kernels of a model as it is compiled, and with each operator by itself.

    Parameters
    ----------
    model : Model
        What the frontend made; it counts as an architecture of its own.
    target : Target
        This machine.
    cost_model : CostModel
        What a compile plans by.
    records : Records, optional
        Tuned decisions for kernels.
    seconds : float
        No further round of timing is begun after so long, beyond the first three.

    Raises
    ------
    TvmFuseError
        It cannot be compiled, or does not run.
    """
    end = time.monotonic() + seconds
    options = _pipeline.Options(cost_model=cost_model)
    planned = _pipeline.plan(model.module, target, options=options)
    plans = {"optimal": planned.plan, "none": FusionPlan()}
    signature = model.signature
    built = variants.build(planned, plans, target, signature=signature, records=records)
    kernels = timeable(planned.module, built.kernels, model=model.name, model_family=model.name)
    times = {plan: variants.Times() for plan in plans}
    feeds = random_inputs(signature.inputs)
    for turn in range(_ROUNDS):
        if turn >= _FEWEST_ROUNDS and time.monotonic() > end:
            break
        for plan, session in built.sessions.items():
            times[plan].add_round(session, feeds)
    timed = tuple(
        _timed(kernels[name], plan, taken.calls[name], tuple(us))
        for plan, taken in times.items()
        for name, us in taken.kernels_us.items()
        if name in kernels
    )
    return Measurements(run_here(target), timed)


def _timed(kernel: MeasuredKernel, plan: str, calls: int, us: tuple[float, ...]) -> MeasuredKernel:
    first, third = quartiles(us)
    median_us = statistics.median(us)
    return replace(kernel, plan=plan, us=median_us, spread_us=third - first, calls=calls)

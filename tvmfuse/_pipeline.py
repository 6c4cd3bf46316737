"""The one file that knows the order of the stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any

from tvmfuse._tvm import tvm
from tvmfuse.calibrate import calibrated
from tvmfuse.compiled import Compiled, KernelInfo
from tvmfuse.compiled import Schedule as ScheduleSource
from tvmfuse.cost import shipped
from tvmfuse.errors import LoweringError, ModelError
from tvmfuse.frontend import Model
from tvmfuse.kernels import legalize
from tvmfuse.kernels.families import Scheduled
from tvmfuse.passes import codegen, verify
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.passes.collect import collect
from tvmfuse.passes.emit import emitters
from tvmfuse.passes.layout import layout
from tvmfuse.passes.lower import Lowered, Origin, lower
from tvmfuse.passes.parameters import lift_parameters
from tvmfuse.passes.partition import partition
from tvmfuse.passes.schedule import Schedules, machine_of, schedule
from tvmfuse.patterns.registry import Registry, default
from tvmfuse.plan import CostModel, FunctionGraph, FusionPlan, Measure, Records, Rejection
from tvmfuse.planner import STRATEGIES, Strategy, choose
from tvmfuse.targets import Target
from tvmfuse.targets.export import compile_context

Progress = Callable[[str], None]
RecordsOf = Callable[[Target], AbstractContextManager[Records | None]]
MeasureIn = Callable[["Planned", Target], Measure]


@dataclass(frozen=True)
class Options:
    """What a compile may be told.

    Parameters
    ----------
    fuse : bool
        Whether to fuse at all; without, every operator is a kernel of its own.
    registry : Registry
        The patterns to look for.
    cost_model : CostModel, optional
        Predicts what fusing is worth; where not given, the learned model of the device's
        family, or the roofline where there is none.
    strategy : Strategy
        How to choose what to fuse; others than the optimal one are there to compare.
    max_memory_bytes : int, optional
        What values between the kernels of a function may take at any time.
    measure : callable, optional
        Given a module with nothing fused and the target, returns what measures the
        candidates whose gain is in doubt.
    measure_us : float
        Time that measuring may take.
    notes : tuple of str
        What the plan shall say about how it was made.
    records : Records, optional
        Tuned decisions for kernels; each kernel has its family's default ones without.
    verify : bool
        Whether what each stage returns is checked, at the cost of time.
    """

    fuse: bool = True
    registry: Registry = field(default_factory=default)
    cost_model: CostModel | None = None
    strategy: Strategy = STRATEGIES["optimal"]
    max_memory_bytes: int | None = None
    measure: MeasureIn | None = None
    measure_us: float = 0.0
    notes: tuple[str, ...] = ()
    records: Records | None = None
    verify: bool = False


@dataclass(frozen=True)
class Planned:
    """A canonical module, the plan for it, and what it was planned by.

    Parameters
    ----------
    module : tvm.IRModule
        The module.
    plan : FusionPlan
        What to fuse.
    graphs : Mapping of str to FunctionGraph
        The dependencies that the plan speaks of.
    model : CostModel
        What predicted its times.
    registry : Registry
        The patterns that were looked for.
    """

    module: Any
    plan: FusionPlan
    graphs: Mapping[str, FunctionGraph]
    model: CostModel
    registry: Registry


@dataclass(frozen=True)
class Prepared:
    """Scheduled kernels, and what each was made of."""

    module: Any
    plan: FusionPlan
    lowered: Lowered
    schedules: Schedules


class _Stages:
    """Times each stage and tells the user which one runs."""

    def __init__(self, progress: Progress | None = None, *, verify: bool = False) -> None:
        self.seconds: dict[str, float] = {}
        self._progress = progress
        self._verify = verify

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        if self._progress is not None:
            self._progress(name)
        start = time.perf_counter()
        yield
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - start

    def returned(self, name: str, mod: Any) -> None:
        """Check what a stage returned, where that is wanted."""
        if self._verify:
            with self.stage("verify"):
                verify.check(mod, name)


def plan(
    mod: Any, target: Target, *, options: Options | None = None, stages: _Stages | None = None
) -> Planned:
    """Find what may be fused in a module and choose what to fuse.

    Parameters
    ----------
    mod : tvm.IRModule
        Relax operators.
    target : Target
        The device.
    options : Options, optional
        What to look for and how to judge it.

    Returns
    -------
    Planned
        The module in canonical form, to which the plan refers.
    """
    options = options or Options()
    stages = stages or _Stages(verify=options.verify)
    with stages.stage("canonicalise"):
        mod = canonicalise(codegen.dispatch_libraries(mod, target.tvm()))
    stages.returned("canonicalise", mod)
    with stages.stage("collect"):
        found = collect(mod, options.registry)
    with stages.stage("plan"):
        model, notes = _cost_model(options, target)
        candidates = found.candidates if options.fuse else ()
        unfused = Planned(mod, FusionPlan(), found.graphs, model, options.registry)
        chosen = choose(
            found.graphs,
            candidates,
            model,
            strategy=options.strategy,
            max_memory_bytes=options.max_memory_bytes,
            measure=options.measure and options.measure(unfused, target),
            budget_us=options.measure_us,
        )
        rejected = (*found.rejections, *chosen.rejections)
        chosen = replace(chosen, rejections=rejected if options.fuse else (), notes=notes)
    return replace(unfused, plan=chosen)


def _cost_model(options: Options, target: Target) -> tuple[CostModel, tuple[str, ...]]:
    """Return what predicts times, and what there is to say about it."""
    if options.cost_model is not None:
        return options.cost_model, options.notes
    found = shipped.best(target.cost_family, target.peaks)
    return found.model, (*options.notes, found.note)


def prepare(
    mod: Any, target: Target, *, options: Options | None = None, stages: _Stages | None = None
) -> Prepared:
    """Plan, fuse, lower and schedule a module: all but code generation.

    Raises
    ------
    LoweringError
        A single operator cannot be lowered; a group that cannot falls back to its parts.
    """
    options = options or Options()
    stages = stages or _Stages(verify=options.verify)
    planned = plan(mod, target, options=options, stages=stages)
    return realize(planned, planned.plan, target, records=options.records, stages=stages)


def build(
    model: Model,
    target: Target,
    *,
    options: Options | None = None,
    progress: Progress | None = None,
) -> Compiled:
    """Compile an imported model.

    Parameters
    ----------
    model : Model
        What the frontend made.
    target : Target
        The device.
    options : Options, optional
        What to fuse.
    progress : callable, optional
        Is called with the name of each stage as it begins.

    Returns
    -------
    Compiled
        Its weights lie beside its code.

    Raises
    ------
    LoweringError
        A single operator cannot be lowered, or no code can be generated for it.
    ModelError
        The weights of the model are parameters.
    """
    if len(model.module["main"].params) != len(model.signature.inputs):
        raise ModelError(
            f"{model.name}: the weights of a bundle must be constants, but they are parameters: "
            "import without keep_params, or use tvm.compile with relax_pipeline='tvmfuse'"
        )
    options = options or Options()
    stages = _Stages(progress, verify=options.verify)
    compile_context(target)  # a missing compiler is told now, not after all stages
    planned = plan(model.module, target, options=options, stages=stages)
    return build_planned(model, planned, target, records=options.records, stages=stages)


def build_planned(
    model: Model,
    planned: Planned,
    target: Target,
    *,
    records: Records | None = None,
    stages: _Stages | None = None,
) -> Compiled:
    """Compile a model by a plan that was made for it; see :func:`build`.

    Parameters
    ----------
    model : Model
        What the frontend made.
    planned : Planned
        What :func:`plan` made of it; its plan may have been given fewer groups.
    target : Target
        The device.
    """
    stages = stages or _Stages()
    chosen = planned.plan
    while True:
        prepared = realize(planned, chosen, target, records=records, stages=stages)
        with stages.stage("build"):
            lifted = lift_parameters(prepared.module)
            try:
                with compile_context(target):
                    executable = codegen.generate(lifted.module, target.tvm())
                break
            except codegen.FAILURES as error:
                chosen = _without_broken(prepared, target, error)
    return Compiled(
        model_name=model.name,
        executable=executable,
        params=lifted.params,
        signature=model.signature,
        target=target,
        plan=prepared.plan,
        kernels=kernel_infos(prepared, planned.graphs["main"].labels),
        seconds=stages.seconds,
    )


def realize(
    planned: Planned,
    chosen: FusionPlan,
    target: Target,
    *,
    records: Records | None = None,
    stages: _Stages | None = None,
) -> Prepared:
    """Fuse what was chosen, lower and schedule it.

    Parameters
    ----------
    planned : Planned
        A module, of one function or more.
    chosen : FusionPlan
        What to fuse in them.
    target : Target
        The device.
    records : Records, optional
        Tuned decisions for kernels.
    """
    stages = stages or _Stages(None)
    tvm_target, is_cpu = target.tvm(), target.rules == "cpu"
    rejections, own = chosen.rejections, emitters(planned.registry)
    with stages.stage("partition"):
        mod = partition(planned.module, chosen)
    stages.returned("partition", mod)
    if is_cpu:
        with stages.stage("layout"):
            laid = layout(mod, machine_of(target), own=own)
            mod, rejections = laid.module, (*rejections, *laid.rejections)
        stages.returned("layout", mod)
    with stages.stage("lower"):
        rules = legalize.rules(machine_of(target)) if is_cpu else {}
        lowered = lower(mod, tvm_target, rules, own=own)
        mod = codegen.lower_views(lowered.module, tvm_target)
    stages.returned("lower", mod)
    with stages.stage("schedule"):
        schedules = schedule(mod, target, records=records)
    stages.returned("schedule", schedules.module)
    rejections = (*rejections, *lowered.rejections)
    return Prepared(schedules.module, replace(chosen, rejections=rejections), lowered, schedules)


def _without_broken(prepared: Prepared, target: Target, error: Exception) -> FusionPlan:
    """Return the plan without the groups whose kernels the code generator refuses.

    Raises
    ------
    LoweringError
        No fused group is to blame.
    """
    with compile_context(target):
        reasons = {
            place: reason
            for name, reason in codegen.broken_kernels(prepared.module, target.tvm())
            for place in prepared.lowered.origins.get(name, Origin("", (), ())).places
        }
    groups = prepared.plan.groups
    broken = [g.candidate for g in groups if g.candidate.bindings in reasons]
    if not broken and isinstance(error, LoweringError):  # it says which code and why
        raise error
    if not broken:
        raise LoweringError(
            f"no code can be generated for {target.spec}: {codegen.one_line(error)}"
        ) from error
    rejected = [
        Rejection(c.pattern, c.function, c.bindings, "lower", reasons[c.bindings]) for c in broken
    ]
    kept = tuple(g for g in groups if g.candidate not in broken)
    return replace(prepared.plan, groups=kept, rejections=(*prepared.plan.rejections, *rejected))


def pipeline(
    target: Target | None = None,
    *,
    options: Options | None = None,
    records: RecordsOf | None = None,
) -> Any:
    """Return the stages as one TVM pass, for ``tvm.compile(mod, relax_pipeline=...)``.

    Parameters
    ----------
    target : Target, optional
        The device; where not given, TVM's current target tells.
    options : Options, optional
        What to fuse.
    records : callable, optional
        Opens the tuning records of a device, in place of those of the options.

    Returns
    -------
    tvm.transform.Pass
        Relax operators in, kernels and runtime calls out; weights stay constants.
    """

    @tvm.transform.module_pass(opt_level=0, name="tvmfuse")
    def run(mod: Any, _context: Any) -> Any:
        device = target or _current_target()
        with records(device) if records is not None else nullcontext() as found:
            given = options or Options()
            prepared = prepare(mod, device, options=replace(given, records=found or given.records))
        return codegen.finish(prepared.module, device.tvm())

    return run


def _current_target() -> Target:
    from tvmfuse.targets.registry import from_tvm

    current = tvm.target.Target.current(allow_none=True)
    return calibrated(from_tvm(current))


def kernel_infos(prepared: Prepared, labels: Sequence[str]) -> tuple[KernelInfo, ...]:
    """Describe every kernel of a prepared module; ``labels`` names the bindings."""
    origins = prepared.lowered.origins
    fallen = {i for r in prepared.plan.rejections if r.stage == "lower" for i in r.bindings}
    tuned = prepared.schedules.tuned
    infos = []
    for name, kernel in prepared.schedules.kernels.items():
        origin = origins.get(name, Origin("", (), ()))
        info = _kernel_info(name, kernel, origin, fallen, is_tuned=name in tuned)
        nodes = dict.fromkeys(labels[i] for place in origin.places for i in place)
        infos.append(replace(info, nodes=tuple(nodes)))
    return tuple(infos)


def _kernel_info(
    name: str, kernel: Scheduled, origin: Origin, fallen: Set[int], *, is_tuned: bool
) -> KernelInfo:
    source: ScheduleSource = "tuned" if is_tuned else "family"
    if any(fallen >= set(place) for place in origin.places if place):
        source = "fallback"
    elif kernel.family in ("generic", ""):
        source = "generic" if kernel.family else "none"
    return KernelInfo(
        name, kernel.family, origin.pattern, source, kernel.note, places=origin.places
    )

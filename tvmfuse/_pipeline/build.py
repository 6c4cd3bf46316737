"""From a model to code."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import replace

from tvmfuse._pipeline.fallback import without_groups
from tvmfuse._pipeline.options import Options, Planned, Prepared
from tvmfuse._pipeline.order import plan, realize
from tvmfuse._pipeline.stages import Progress, Stages
from tvmfuse.compiled import Compiled, KernelInfo
from tvmfuse.compiled import Schedule as ScheduleSource
from tvmfuse.errors import LoweringError, ModelError
from tvmfuse.frontend import Model
from tvmfuse.kernels.families import Scheduled
from tvmfuse.passes import codegen
from tvmfuse.passes.lower import Origin
from tvmfuse.passes.parameters import lift_parameters
from tvmfuse.plan import FusionPlan, Records
from tvmfuse.targets import Target
from tvmfuse.targets.export import compile_context


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
    stages = Stages(progress, verify=options.verify)
    compile_context(target)  # a missing compiler is told now, not after all stages
    planned = plan(model.module, target, options=options, stages=stages)
    return build_planned(model, planned, target, records=options.records, stages=stages)


def build_planned(
    model: Model,
    planned: Planned,
    target: Target,
    *,
    records: Records | None = None,
    stages: Stages | None = None,
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
    stages = stages or Stages()
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
    return without_groups(prepared.plan, reasons)


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

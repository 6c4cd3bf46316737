"""One model under several plans, in one library in which equal kernels are one."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from tvmfuse import _pipeline
from tvmfuse._pipeline import Planned
from tvmfuse._tvm import relax, tvm
from tvmfuse.compiled import KernelInfo
from tvmfuse.frontend import Signature
from tvmfuse.passes import codegen
from tvmfuse.passes.parameters import lift_parameters
from tvmfuse.plan import FusionPlan, Records
from tvmfuse.runtime import Session
from tvmfuse.targets import Target
from tvmfuse.targets.export import compile_context

COUNTED_RUNS = 2  # after one that finds the caches as another plan left them

# What may go wrong where one plan of several cannot be built.
FAILURES = codegen.FAILURES


@dataclass(frozen=True)
class Variants:
    """One model under several plans.

    Parameters
    ----------
    library : tvm.runtime.Executable
        Holds one function for each plan, ``main_0`` for the first.
    params : Mapping of str to sequence of numpy.ndarray
        The weights of each plan, by its name.
    signature : Signature
        Of the model.
    kernels : Mapping of str to KernelInfo
        The kernels that the plans share.
    """

    library: Any
    params: Mapping[str, Sequence[Any]]
    signature: Signature
    kernels: Mapping[str, KernelInfo]

    @cached_property
    def sessions(self) -> Mapping[str, Session]:
        """Sessions by the name of their plan."""
        return sessions(self.library, self.params, signature=self.signature)


def sessions(
    library: Any, params: Mapping[str, Sequence[Any]], *, signature: Signature
) -> Mapping[str, Session]:
    """Return a session for each plan of a library; see :class:`Variants`."""
    return {
        name: Session(library, own, signature=signature, device=tvm.cpu(), entry=f"main_{i}")
        for i, (name, own) in enumerate(params.items())
    }


def build(
    planned: Planned,
    plans: Mapping[str, FusionPlan],
    target: Target,
    *,
    signature: Signature,
    records: Records | None = None,
) -> Variants:
    """Build a model once for each plan.

    Parameters
    ----------
    planned : Planned
        The module that the plans speak of.
    plans : Mapping of str to FusionPlan
        What to fuse in its function ``main``, by a name.
    target : Target
        This machine.
    signature : Signature
        Of the model.
    records : Records, optional
        Tuned decisions for kernels.

    Raises
    ------
    LoweringError
        A single operator cannot be lowered.
    """
    others = planned.module.functions.items()
    functions = {var: function for var, function in others if var.name_hint != "main"}
    groups = []
    for i, plan in enumerate(plans.values()):
        main = relax.utils.copy_with_new_vars(planned.module["main"])
        functions[tvm.ir.GlobalVar(f"main_{i}")] = main.with_attr("global_symbol", f"main_{i}")
        for group in plan.groups:
            if group.candidate.function == "main":
                moved = replace(group.candidate, function=f"main_{i}")
                groups.append(replace(group, candidate=moved))
    several = replace(planned, module=relax.transform.Normalize()(tvm.IRModule(functions)))
    prepared = _pipeline.realize(several, FusionPlan(tuple(groups)), target, records=records)
    module, params = prepared.module, []
    for i in range(len(plans)):
        lifted = lift_parameters(module, f"main_{i}")
        module = lifted.module
        params.append(lifted.params)
    with compile_context(target):
        library = codegen.generate(module, target.tvm())
    infos = _pipeline.kernel_infos(prepared, planned.graphs["main"].labels)
    weights = {name: tuple(own.values()) for name, own in zip(plans, params, strict=True)}
    return Variants(library, weights, signature, {kernel.name: kernel for kernel in infos})


@dataclass
class Times:
    """Times of kernels under one plan, one a round, in microseconds for one call."""

    kernels_us: dict[str, list[float]] = field(default_factory=dict)
    calls: Counter[str] = field(default_factory=Counter)

    def add_round(self, session: Session, feeds: Mapping[str, Any]) -> None:
        """Run a model a few times and keep the better time of each kernel."""
        session.kernel_times(feeds)
        runs = [session.kernel_times(feeds) for _ in range(COUNTED_RUNS)]
        self.calls = Counter(kernel for kernel, _ in runs[0])
        totals = [_totals(run) for run in runs]
        for kernel, n_calls in self.calls.items():
            best = min(total[kernel] for total in totals) / n_calls
            self.kernels_us.setdefault(kernel, []).append(best)


def _totals(calls: Sequence[tuple[str, float]]) -> Mapping[str, float]:
    totals: dict[str, float] = {}
    for kernel, us in calls:
        totals[kernel] = totals.get(kernel, 0.0) + us
    return totals

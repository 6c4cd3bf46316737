"""What there is to tune in a model: its distinct kernels, and how often each one runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from tvmfuse._pipeline import Prepared
from tvmfuse._tvm import relax, tirx, tvm_ffi
from tvmfuse.kernels import blocks, families
from tvmfuse.kernels.families import Scheduled
from tvmfuse.kernels.tiling import Machine
from tvmfuse.store import Workload, keys
from tvmfuse.tuning.space import Space, explore


@dataclass(frozen=True)
class Task:
    """One kernel to tune.

    Parameters
    ----------
    names : tuple of str
        Its functions in the module; several where they differ in names alone.
    family : str
        Kernel family.
    workload : Workload
        The kernel before any schedule, with its key.
    uses : int
        How often one inference runs it.
    steps : int
        Innermost steps of one run: a first guess of its share of the time.
    space : Space
        Its decisions.
    accumulation : str
        Element type of its sums.
    by_trace : bool
        Whether TVM's own space is searched in place of these decisions.
    """

    names: tuple[str, ...]
    family: str
    workload: Workload
    uses: int
    steps: int
    space: Space
    accumulation: str = "float32"
    by_trace: bool = False

    @property
    def name(self) -> str:
        """What a person calls it."""
        return self.names[0]


Strategy = Literal["auto", "families", "metaschedule"]
"""Which spaces are searched: ours, and TVM's where we have none; ours alone; TVM's alone."""

_UNCOVERED = ("generic", "")


def tasks_of(
    prepared: Prepared, machine: Machine, *, seed: int = 0, strategy: Strategy = "auto"
) -> tuple[Task, ...]:
    """Return what can be tuned in a model, the most work first.

    Parameters
    ----------
    prepared : Prepared
        The scheduled module with its unscheduled kernels.
    machine : Machine
        What the schedules may count on.
    seed : int
        Chooses the walks that explore dynamic spaces.
    strategy : str
        Which spaces are searched.

    Returns
    -------
    tuple of Task
        Kernels that nothing is decided in are left out.
    """
    uses = _calls(prepared.module)
    found: dict[str, Task] = {}
    for name, function in prepared.schedules.sources.items():
        if not blocks.is_made_of_blocks(function):
            continue
        key = keys.workload_key(function)
        if key in found:
            found[key] = _together(found[key], name, uses[name])
            continue
        task = _task(name, function, uses[name], machine, seed=seed)
        task = _chosen(task, prepared.schedules.kernels[name], strategy)
        if task.space.size > 1 or task.by_trace:
            found[key] = task
    return tuple(sorted(found.values(), key=lambda task: -task.uses * task.steps))


def _task(name: str, function: Any, uses: int, machine: Machine, *, seed: int) -> Task:
    return Task(
        names=(name,),
        family=families.family_of(function),
        workload=keys.workload(function),
        uses=uses,
        steps=max(_steps(function), default=1),
        space=explore(
            lambda recorder: families.schedule(function, machine, recorder.choose), seed=seed
        ),
        accumulation=keys.accumulation(function),
    )


def _chosen(task: Task, scheduled: Scheduled, strategy: Strategy) -> Task:
    """Return a task with the space to search: TVM's where no family of ours serves it."""
    is_covered = scheduled.family not in _UNCOVERED and not scheduled.note
    by_trace = strategy == "metaschedule" or (strategy == "auto" and not is_covered)
    space = task.space if is_covered else Space(())
    return replace(task, family=scheduled.family, space=space, by_trace=by_trace)


def _together(task: Task, name: str, uses: int) -> Task:
    return replace(task, names=(*task.names, name), uses=task.uses + uses)


def _calls(mod: Any) -> Counter[str]:
    """Count how often one inference calls each kernel."""
    counts: Counter[str] = Counter()
    main = mod["main"]
    for block in main.body.blocks:
        for binding in block.bindings:
            call = getattr(binding, "value", None)
            if isinstance(call, relax.Call) and getattr(call.op, "name", "") == "relax.call_tir":
                counts[str(call.args[0].name_hint)] += 1
    return counts


def _steps(function: Any) -> Iterator[int]:
    """Yield the iterations of each block of a kernel of static shape."""
    loops: list[Any] = []
    tvm_ffi.structural_walk(function.body, (tirx.For, loops.append))
    for loop in loops:
        extent, body = 1, loop
        while isinstance(body, tirx.For):
            extent *= int(body.extent) if isinstance(body.extent, int | tirx.IntImm) else 1
            body = body.body
        yield extent

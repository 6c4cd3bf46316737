"""What CUDA's assembler says of the kernels behind a decision; no GPU is needed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from tvmfuse import _pipeline
from tvmfuse._pipeline import Planned
from tvmfuse.cost import assembler
from tvmfuse.cost.features import Resources
from tvmfuse.errors import TvmFuseError
from tvmfuse.passes import codegen
from tvmfuse.plan import FusionPlan, Group
from tvmfuse.targets import Target
from tvmfuse.targets.export import compile_context, device_sources

Place = tuple[int, ...]


@dataclass(frozen=True)
class Assembled:
    """Resources of kernels by the bindings that they compute, or why there are none.

    Parameters
    ----------
    resources : Mapping of tuple of int to Resources
        By bindings; of several device functions the most of each.
    note : str
        Why it is empty, in a line; "" where nothing is wrong.
    """

    resources: Mapping[Place, Resources] = field(default_factory=dict)
    note: str = ""


def of_group(planned: Planned, group: Group, target: Target) -> Assembled:
    """Assemble a group as one kernel and as kernels apart.

    Parameters
    ----------
    planned : Planned
        The module that the group is of.
    group : Group
        What is decided about.
    target : Target
        Any; only CUDA has an assembler that tells.
    """
    if target.kind != "cuda" or group.candidate.function != "main":
        return Assembled()
    try:
        return Assembled(_of_group(planned, group, target))
    except TvmFuseError as error:
        return Assembled(note=f"registers and spills are not known: {error}")


def _of_group(planned: Planned, group: Group, target: Target) -> Mapping[Place, Resources]:
    candidate = group.candidate
    wanted = {candidate.bindings, *((op.binding,) for op in candidate.graph.ops)}
    kernels: dict[str, Any] = {}
    places: dict[str, set[Place]] = {}
    for plan in (FusionPlan((group,)), FusionPlan()):
        prepared = _pipeline.realize(planned, plan, target)
        for name, origin in prepared.lowered.origins.items():
            if own := wanted.intersection(origin.places):
                wanted -= own
                symbol = f"kernel{len(kernels)}"
                kernels[symbol], places[symbol] = prepared.module[name], own
    with compile_context(target):
        built = codegen.generate_kernels(kernels, target.tvm())
    found = assembler.resources("\n".join(device_sources(built)), target.attrs["arch"])
    taken = {
        symbol: [own for name, own in found.items() if name.startswith(f"{symbol}_")]
        for symbol in kernels
    }
    return {place: _most(own) for symbol, own in taken.items() if own for place in places[symbol]}


def _most(found: list[Resources]) -> Resources:
    return Resources(
        registers=max(each.registers for each in found),
        spill_bytes=max(each.spill_bytes for each in found),
        shared_bytes=max(each.shared_bytes for each in found),
    )

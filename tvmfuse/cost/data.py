"""Measured kernels as text: what a cost model learns from and is judged by.

A file holds one JSON object a line. A line with ``run`` describes a machine; those after
it are of that machine: one for each kernel of a model under a plan, and one for each
plan as a whole. A kernel is kept with its operators, so that features can be computed
anew whenever their definition changes.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, get_args

from tvmfuse.cost.features import Resources
from tvmfuse.errors import CostModelError
from tvmfuse.plan import OpGraph, OpKind, OpNode, Peaks, TensorInfo

SCHEMA = 1

CALL_US = 0.2
"""What TVM's virtual machine takes for the call of a kernel, beside the kernel itself."""


@dataclass(frozen=True)
class Run:
    """The machine of some measurements.

    Parameters
    ----------
    device : str
        What the vendor calls it.
    device_family : str
        Devices that run the same code alike: ``x86-64-v3``.
    target : str
        What was compiled for, as a user names it.
    threads : int
        Threads that the kernels ran on.
    peaks : Peaks
        Measured peaks of the target on the machine.
    versions : Mapping of str to str
        The software.
    created : str
        When, in UTC.
    """

    device: str
    device_family: str
    target: str
    threads: int
    peaks: Peaks
    versions: Mapping[str, str] = field(default_factory=dict)
    created: str = ""


@dataclass(frozen=True)
class MeasuredKernel:
    """A kernel that was timed in its place in a model.

    Parameters
    ----------
    model, model_family : str
        The model, and the architectures that it belongs with.
    plan : str
        What chose the groups of the model.
    pattern, family : str
        What formed its group, and the kernel family that runs it.
    schedule : str
        Where its schedule came from: ``family``, ``tuned``, ``generic`` …
    graph : OpGraph
        Its operators.
    us : float
        Median run time, in microseconds.
    spread_us : float
        Third quartile minus first.
    calls : int
        How often a run of the model calls it.
    places : tuple of tuple of int
        The bindings that it computes, for each place that some plan calls it from.
    resources : Resources, optional
        What an assembler reports of it, where it is a GPU's.
    """

    model: str
    model_family: str
    plan: str
    pattern: str
    family: str
    schedule: str
    graph: OpGraph
    us: float
    spread_us: float
    calls: int
    places: tuple[tuple[int, ...], ...]
    resources: Resources | None = None

    @property
    def call_us(self) -> float:
        """Run time with that of its call, which a fused kernel needs only once."""
        return self.us + CALL_US


@dataclass(frozen=True)
class MeasuredPlan:
    """A whole model that was timed under a plan.

    Parameters
    ----------
    model, model_family, plan : str
        As of its kernels.
    us : float
        Median run time of the model, in microseconds.
    spread_us : float
        Third quartile minus first.
    other_us : float
        The part of it in kernels that are no group: changes of layout.
    groups : tuple of tuple of int
        The bindings of every group.
    """

    model: str
    model_family: str
    plan: str
    us: float
    spread_us: float
    other_us: float
    groups: tuple[tuple[int, ...], ...]


@dataclass(frozen=True)
class Measurements:
    """All that one run measured."""

    run: Run
    kernels: tuple[MeasuredKernel, ...] = ()
    plans: tuple[MeasuredPlan, ...] = ()


def read(path: Path) -> list[Measurements]:
    """Read a file of measurements; a line that was cut off by an interruption is left out.

    Raises
    ------
    CostModelError
        It is no such file, or a time in it is none.
    """
    runs: list[tuple[Run, list[MeasuredKernel], list[MeasuredPlan]]] = []
    lines = path.read_text(encoding="utf-8").splitlines()
    for number, line in enumerate(lines, start=1):
        try:
            row = json.loads(line)
            if "run" in row:
                runs.append((_run(row["run"]), [], []))
            elif "graph" in row:
                runs[-1][1].append(_kernel(row))
            else:
                runs[-1][2].append(_plan(row))
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            if number == len(lines) and runs:
                break
            raise CostModelError(
                f"{path}: line {number} must be a measurement, but is not: {error}; "
                "collect again with scripts/collect_measurements.py"
            ) from error
    return [Measurements(run, tuple(kernels), tuple(plans)) for run, kernels, plans in runs]


def kernel_of(line: str) -> MeasuredKernel:
    """Read one kernel back that :func:`lines` wrote."""
    return _kernel(json.loads(line))


def run_line(run: Run) -> str:
    """Return the line that begins a run."""
    return _text({"run": {"schema": SCHEMA, **asdict(run)}})


def lines(kernels: Iterable[MeasuredKernel], plans: Iterable[MeasuredPlan]) -> Iterator[str]:
    """Yield the lines of some measurements, in a compact form."""
    for kernel in kernels:
        row = {**vars(kernel), "graph": _graph_row(kernel.graph)}
        if (resources := row.pop("resources")) is not None:
            row["resources"] = asdict(resources)
        yield _text({**row, "us": round(kernel.us, 3), "spread_us": round(kernel.spread_us, 3)})
    for plan in plans:
        yield _text(vars(plan))


def _text(row: Mapping[str, Any]) -> str:
    return json.dumps(row, separators=(",", ":"), allow_nan=False)


def _run(row: dict[str, Any]) -> Run:
    if row.pop("schema") != SCHEMA:
        raise ValueError("it is of another schema")
    return Run(**{**row, "peaks": Peaks(**row["peaks"])})


def _kernel(row: dict[str, Any]) -> MeasuredKernel:
    _check_time(row["us"])
    graph, places = _graph(row["graph"]), tuple(map(tuple, row["places"]))
    resources = Resources(**row["resources"]) if "resources" in row else None
    return MeasuredKernel(**{**row, "graph": graph, "places": places, "resources": resources})


def _plan(row: dict[str, Any]) -> MeasuredPlan:
    _check_time(row["us"])
    return MeasuredPlan(**{**row, "groups": tuple(map(tuple, row["groups"]))})


def _check_time(us: Any) -> None:
    if not isinstance(us, int | float) or not math.isfinite(us) or us <= 0:
        raise ValueError(f"a run time must be above 0 and finite, not {us}")


def _graph_row(graph: OpGraph) -> list[Any]:
    tensors = [[list(t.shape), t.dtype, int(t.is_constant)] for t in graph.tensors]
    ops = [[op.name, op.kind, op.inputs, op.outputs, op.flops, op.binding] for op in graph.ops]
    return [tensors, ops, graph.inputs, graph.outputs]


def _graph(row: Sequence[Any]) -> OpGraph:
    tensors, ops, inputs, outputs = row
    graph = OpGraph(
        tensors=tuple(
            TensorInfo(tuple(shape), dtype, bool(constant)) for shape, dtype, constant in tensors
        ),
        ops=tuple(
            OpNode(name, kind, tuple(read), tuple(made), flops, binding)
            for name, kind, read, made, flops, binding in ops
        ),
        inputs=tuple(inputs),
        outputs=tuple(outputs),
    )
    used = {i for op in graph.ops for i in (*op.inputs, *op.outputs)}
    if not used <= set(range(len(graph.tensors))):
        raise ValueError("an operator names a tensor that is not there")
    if not {op.kind for op in graph.ops} <= set(get_args(OpKind)):
        raise ValueError("an operator is of a kind that is none")
    return graph

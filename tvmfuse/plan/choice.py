"""What may become one kernel, what was chosen, and why the rest was not."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

from tvmfuse.plan.graph import OpGraph, OpNode, TensorInfo


@dataclass(frozen=True, slots=True)
class Candidate:
    """One place in one module where operators may become one kernel.

    Parameters
    ----------
    pattern : str
        Name of the pattern or generator that found it.
    family : str
        Kernel family that would run it, see ``kernels/``.
    function : str
        Name of the Relax function.
    bindings : tuple of int
        Positions of its bindings, ascending; never empty.
    graph : OpGraph
        Its operators as plain data, for the cost model.
    recomputes : tuple of int
        Those of its bindings that it computes for itself only: others read them, too,
        and get them from another kernel. What they read inside is among them.
    """

    pattern: str
    family: str
    function: str
    bindings: tuple[int, ...]
    graph: OpGraph
    recomputes: tuple[int, ...] = ()

    @property
    def provides(self) -> tuple[int, ...]:
        """The bindings that need no other kernel once this one is used."""
        if not self.recomputes:
            return self.bindings
        return tuple(i for i in self.bindings if i not in self.recomputes)

    @property
    def likeness(self) -> Hashable:
        """What two candidates share that take equally long: all but where they are."""
        graph = self.graph
        ops = tuple(
            (op.name, op.kind, op.inputs, op.outputs, op.flops, op.binding in self.recomputes)
            for op in graph.ops
        )
        return self.pattern, self.family, graph.tensors, ops, graph.outputs

    @property
    def label(self) -> str:
        """Short readable name: the operators in order."""
        return " + ".join(
            op.name.removeprefix("relax.").removeprefix("nn.") for op in self.graph.ops
        )


@dataclass(frozen=True, slots=True)
class RunTime:
    """Run time of a candidate, in microseconds.

    Parameters
    ----------
    fused_us : float
        As one kernel.
    unfused_us : float
        As kernels apart, without those whose values it computes for itself only.
    doubt_us : float
        How far :attr:`saved_us` may be off, up or down, in four cases of five.
    """

    fused_us: float
    unfused_us: float
    doubt_us: float = 0.0

    @property
    def saved_us(self) -> float:
        """How much time fusing saves; negative where it costs."""
        return self.unfused_us - self.fused_us

    @property
    def is_doubtful(self) -> bool:
        """Whether fusing may as well cost as save."""
        return abs(self.saved_us) < self.doubt_us


@dataclass(frozen=True, slots=True)
class Rejection:
    """Why a match or candidate was not used.

    Parameters
    ----------
    pattern, function : str
        What found it, and where.
    bindings : tuple of int
        Its bindings; none where the pattern failed as a whole.
    stage : str
        Who refused it.
    reason : str
        Why, the same for all that were refused for the same reason.
    time : RunTime, optional
        What it would take, where that was asked.
    """

    pattern: str
    function: str
    bindings: tuple[int, ...]
    stage: Literal["collect", "plan", "lower"]
    reason: str
    time: RunTime | None = None


@dataclass(frozen=True, slots=True)
class Group:
    """A chosen candidate with its run time.

    Parameters
    ----------
    candidate : Candidate
        What becomes one kernel.
    time : RunTime
        What decided: the measured times where it was measured, else the predicted ones.
    predicted : RunTime, optional
        What the cost model said, where it was measured after that.
    """

    candidate: Candidate
    time: RunTime
    predicted: RunTime | None = None


@dataclass(frozen=True)
class FusionPlan:
    """The candidates chosen, and one reason for each one that was not.

    Parameters
    ----------
    groups : tuple of Group
        Chosen, by function and position.
    rejections : tuple of Rejection
        Everything else that was considered.
    planner : str
        Who chose.
    gap_us : float
        What the best plan may save more at most; 0 where this is proven to be the best.
    notes : tuple of str
        What else there is to say about how it was made, a line each.
    """

    groups: tuple[Group, ...] = ()
    rejections: tuple[Rejection, ...] = ()
    planner: str = "optimal"
    gap_us: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def saved_us(self) -> float:
        """Predicted time saved by the whole plan, in microseconds."""
        return sum(group.time.saved_us for group in self.groups)

    def to_json(self) -> dict[str, Any]:
        """Return the plan as JSON-compatible data."""
        return {"schema": 1, **asdict(self)}

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> FusionPlan:
        """Rebuild a plan from :meth:`to_json`."""
        return cls(
            groups=tuple(map(_group, data["groups"])),
            rejections=tuple(map(_rejection, data["rejections"])),
            planner=data.get("planner", "optimal"),
            gap_us=data.get("gap_us", 0.0),
            notes=tuple(data.get("notes", ())),
        )


def _group(data: Mapping[str, Any]) -> Group:
    predicted = data.get("predicted")
    return Group(
        _candidate(data["candidate"]),
        RunTime(**data["time"]),
        None if predicted is None else RunTime(**predicted),
    )


def _rejection(data: Mapping[str, Any]) -> Rejection:
    time = RunTime(**data["time"]) if data.get("time") else None
    return Rejection(**{**data, "bindings": tuple(data["bindings"]), "time": time})


def _candidate(data: Mapping[str, Any]) -> Candidate:
    graph = data["graph"]
    return Candidate(
        pattern=data["pattern"],
        family=data["family"],
        function=data["function"],
        bindings=tuple(data["bindings"]),
        graph=OpGraph(
            tensors=tuple(
                TensorInfo(tuple(t["shape"]), t["dtype"], t["is_constant"])
                for t in graph["tensors"]
            ),
            ops=tuple(
                OpNode(**{**op, "inputs": tuple(op["inputs"]), "outputs": tuple(op["outputs"])})
                for op in graph["ops"]
            ),
            inputs=_ints(graph["inputs"]),
            outputs=_ints(graph["outputs"]),
        ),
        recomputes=_ints(data.get("recomputes", ())),
    )


def _ints(values: Sequence[int]) -> tuple[int, ...]:
    return tuple(values)

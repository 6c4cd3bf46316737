"""What passes from stage to stage: plain, frozen, printable data.

Nothing here imports TVM, so plans can be read, compared and drawn without it.
A *binding* is one statement ``var = op(...)`` of a Relax function; it is named
by its position, counted over all blocks of the function from 0.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal, Protocol, runtime_checkable

OpKind = Literal[
    "elementwise",  # one output element from the element at the same place
    "broadcast",  # the same, with an operand that is stretched
    "injective",  # moves elements: transpose, concat, slice, gather
    "reduction",  # sum, max, softmax, norms
    "pooling",  # a window reduction
    "matmul",  # matrix products
    "conv",  # convolutions
    "view",  # no work at run time: reshape, tuple access
    "opaque",  # anything else
]

# A loop nest evaluates these anew wherever their value is read; all other values are
# kept in a tile.
INLINED: frozenset[OpKind] = frozenset({"elementwise", "broadcast", "injective", "view"})

_DTYPE_BYTES = {
    "bool": 1,
    "int8": 1,
    "uint8": 1,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int16": 2,
    "uint16": 2,
    "float16": 2,
    "bfloat16": 2,
    "int32": 4,
    "uint32": 4,
    "float32": 4,
    "int64": 8,
    "uint64": 8,
    "float64": 8,
}


@dataclass(frozen=True)
class TensorInfo:
    """One tensor of an :class:`OpGraph`.

    Parameters
    ----------
    shape : tuple of int or str
        Extents; a symbolic one is the name of its variable.
    dtype : str
        Element type, spelled as NumPy spells it.
    is_constant : bool
        Whether the value is known when compiling (weights).
    """

    shape: tuple[int | str, ...]
    dtype: str
    is_constant: bool = False

    @property
    def size(self) -> int:
        """Number of elements; a symbolic extent counts as 1."""
        return math.prod(d if isinstance(d, int) else 1 for d in self.shape)

    @property
    def n_bytes(self) -> int:
        """Size in bytes; a symbolic extent counts as 1."""
        return self.size * _DTYPE_BYTES.get(self.dtype, 4)


@dataclass(frozen=True)
class OpNode:
    """One operator of an :class:`OpGraph`.

    Parameters
    ----------
    name : str
        Relax operator, for example ``relax.nn.conv2d``.
    kind : str
        Its class, see :data:`OpKind`.
    inputs, outputs : tuple of int
        Indices into :attr:`OpGraph.tensors`.
    flops : int
        Floating-point operations; one multiply-add counts as two.
    binding : int
        Position of its binding in the function.
    label : str
        What a person calls it: the ONNX node's name where known, else the variable.
    """

    name: str
    kind: OpKind
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    flops: int
    binding: int
    label: str = ""


@dataclass(frozen=True)
class OpGraph:
    """Operators and the tensors between them, in program order.

    ``inputs`` and ``outputs`` index ``tensors``; all other tensors live inside.
    """

    tensors: tuple[TensorInfo, ...]
    ops: tuple[OpNode, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


@dataclass(frozen=True)
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
    def label(self) -> str:
        """Short readable name: the operators in order."""
        return " + ".join(
            op.name.removeprefix("relax.").removeprefix("nn.") for op in self.graph.ops
        )


@dataclass(frozen=True)
class FunctionGraph:
    """Dependencies between the bindings of one function.

    Parameters
    ----------
    name : str
        Name of the Relax function.
    deps : tuple of tuple of int
        For every binding, the earlier bindings whose values it reads.
    labels : tuple of str
        For every binding, what a person calls it.
    ops : tuple of str
        For every binding, its operator, or "" where it is none.
    n_bytes : tuple of int
        For every binding, the size of its value; 0 for a view of another's memory.
    results : tuple of int
        The bindings whose values the function returns.
    """

    name: str
    deps: tuple[tuple[int, ...], ...]
    labels: tuple[str, ...] = ()
    ops: tuple[str, ...] = ()
    n_bytes: tuple[int, ...] = ()
    results: tuple[int, ...] = ()


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
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


@dataclass(frozen=True)
class Peaks:
    """What a device can do at best; the roofline's numbers.

    Parameters
    ----------
    gflops : float
        Float32 multiply-add throughput of all cores, in GFLOP/s.
    bandwidth_gbps : Mapping of str to float
        Read bandwidth of all cores per level ("l1", "l2", "l3", "dram"), in GB/s.
        GPUs have "l2" and "dram" only.
    cache_bytes : Mapping of str to int
        Capacity per level, in bytes; "l1" and "l2" of one core.
    dispatch_us : float
        Time to start one kernel, in microseconds.
    cores : int
        Cores (CPU) or multiprocessors (GPU).
    source : str
        "measured" by calibrate, or "default".
    """

    gflops: float
    bandwidth_gbps: Mapping[str, float]
    cache_bytes: Mapping[str, int] = field(default_factory=dict)
    dispatch_us: float = 1.0
    cores: int = 1
    source: str = "default"


class CostModel(Protocol):
    """Predicts what fusing is worth."""

    def predict(self, candidate: Candidate) -> RunTime:
        """Return the run times of ``candidate`` fused and unfused."""
        ...


@runtime_checkable
class BatchCostModel(CostModel, Protocol):
    """Predicts many candidates at once, which is quicker than one by one."""

    def predict_all(self, candidates: Sequence[Candidate]) -> Sequence[RunTime]:
        """Return the run times of each candidate, in order."""
        ...


class Measure(Protocol):
    """Measures candidates on the device."""

    def __call__(
        self, candidates: Sequence[Candidate], *, budget_us: float
    ) -> Sequence[RunTime | None]:
        """Return the measured run times of candidates, in order.

        None for one that failed, or that the budget left no time for.
        """
        ...


@dataclass(frozen=True)
class Tuned:
    """How a tuning record schedules a kernel.

    Parameters
    ----------
    decisions : Mapping
        Those of its family.
    trace : sequence, optional
        TVM's trace as JSON, in place of decisions; its blocks are called as in the kernel.
    note : str
        What a report should say of it, or "".
    """

    decisions: Mapping[str, Any] = field(default_factory=dict)
    trace: Sequence[Any] | None = None
    note: str = ""


class Records(Protocol):
    """Looks tuning records up for exactly one device."""

    def best(self, family: str, kernel: Any) -> Tuned | None:
        """Return what the best record of an unscheduled kernel says, or None."""
        ...


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

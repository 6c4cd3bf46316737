"""The work of one kernel: what the roofline times."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from tvmfuse.cost.effort import Work, effort, starts_threads, width
from tvmfuse.plan import INLINED, OpGraph, OpKind, OpNode

# Families that compute every value once, because they keep it in a tile.
_KEEPS_TILES = frozenset({"attention"})
# Part of the scratch image that a convolution copies for all windows that cover a pixel.
_COPIED_ONCE = frozenset({"relax.nn.pad"})


@dataclass(frozen=True)
class Kernel:
    """Operators that run as one kernel, as amounts of work.

    Parameters
    ----------
    flops : Mapping of OpKind to float
        Operations by kind of operator, in units of float32: one on 8-byte elements
        counts twice.
    activation_bytes, constant_bytes, written_bytes : int
        Distinct bytes read of run-time tensors, read of constants, and written.
    parallelism : int
        Elements of the largest output, which is what the work can be split by.
    launches : int
        How often a kernel is started for it; 0 for a further part of a joined one.
    effort : Mapping of Work to float
        Its operations as the roofline tells them apart, those in padding included.
    starts_threads : bool
        Whether it is worth waking a CPU's other cores.
    """

    flops: Mapping[OpKind, float]
    activation_bytes: int
    constant_bytes: int
    written_bytes: int
    parallelism: int
    launches: int = 1
    effort: Mapping[Work, float] = field(default_factory=dict)
    starts_threads: bool = True

    @property
    def read_bytes(self) -> int:
        """Distinct bytes read."""
        return self.activation_bytes + self.constant_bytes

    @property
    def total_bytes(self) -> int:
        """Distinct bytes touched."""
        return self.read_bytes + self.written_bytes

    @property
    def total_flops(self) -> float:
        """Operations of all kinds."""
        return sum(self.flops.values())


def together(graph: OpGraph, *, family: str = "") -> tuple[Kernel, ...]:
    """Return all operators as one kernel; none where there are only views.

    A joined kernel is given part by part: each has its own working set, all share one
    start and together can be split by all their outputs.

    Values between the operators cost no traffic. An inlined one is computed as
    often as it is read (the "utilization" of XLA's GPU performance model): the
    reader of a stretched operand repeats it, an overlapping pooling window, too.

    Parameters
    ----------
    graph : OpGraph
        The operators.
    family : str
        Kernel family; one that keeps what lies between in a tile repeats nothing.
    """
    if all(op.kind == "view" for op in graph.ops):
        return ()
    repeats = (1.0,) * len(graph.ops) if family in _KEEPS_TILES else _repeats(graph)
    if family != "joined":
        return (_kernel(graph, graph.ops, graph.outputs, repeats, family),)
    times = dict(zip(graph.ops, repeats, strict=True))
    parts = [
        _kernel(graph, part, graph.outputs, [times[op] for op in part], family)
        for part in _parts(graph)
    ]
    total = sum(part.parallelism for part in parts)
    woken = starts_threads(graph, graph.ops)
    return tuple(
        replace(part, parallelism=total, launches=int(i == 0), starts_threads=woken)
        for i, part in enumerate(parts)
    )


def apart(graph: OpGraph, *, without: Sequence[int] = ()) -> tuple[Kernel, ...]:
    """Return every operator as a kernel of its own; a view needs none.

    Parameters
    ----------
    graph : OpGraph
        The operators.
    without : Sequence[int]
        Bindings to leave out.
    """
    return tuple(
        _kernel(graph, (op,), op.outputs, (1.0,))
        for op in graph.ops
        if op.kind != "view" and op.binding not in without
    )


def merged(parts: Sequence[Kernel]) -> Kernel:
    """Return the work of a kernel as a whole."""
    if len(parts) == 1:
        return parts[0]
    flops: defaultdict[OpKind, float] = defaultdict(float)
    work: defaultdict[Work, float] = defaultdict(float)
    for part in parts:
        for kind, amount in part.flops.items():
            flops[kind] += amount
        for of, amount in part.effort.items():
            work[of] += amount
    return replace(
        parts[0],
        flops=dict(flops),
        effort=dict(work),
        activation_bytes=sum(part.activation_bytes for part in parts),
        constant_bytes=sum(part.constant_bytes for part in parts),
        written_bytes=sum(part.written_bytes for part in parts),
        parallelism=max(part.parallelism for part in parts),
    )


def alone(graph: OpGraph, op: OpNode) -> OpGraph:
    """Return one operator of a graph as a graph of its own."""
    at = {index: i for i, index in enumerate(dict.fromkeys((*op.inputs, *op.outputs)))}
    inputs, outputs = tuple(at[i] for i in op.inputs), tuple(at[i] for i in op.outputs)
    return OpGraph(
        tensors=tuple(graph.tensors[index] for index in at),
        ops=(replace(op, inputs=inputs, outputs=outputs),),
        inputs=tuple(sorted({*inputs} - {*outputs})),
        outputs=tuple(sorted({*outputs})),
    )


def unplaced(graph: OpGraph) -> OpGraph:
    """Return a graph without what tells equal kernels apart: places and labels."""
    ops = tuple(
        OpNode(op.name, op.kind, op.inputs, op.outputs, op.flops, i)
        for i, op in enumerate(graph.ops)
    )
    return OpGraph(graph.tensors, ops, graph.inputs, graph.outputs)


def _parts(graph: OpGraph) -> list[list[OpNode]]:
    """Return the operators in sets that share no value they make, in program order."""
    part_of: dict[int, list[OpNode]] = {}  # by tensor
    for op in graph.ops:
        near = {id(part_of[i]): part_of[i] for i in op.inputs if i in part_of}
        part = [*(other for found in near.values() for other in found), op]
        made = (i for other in part for i in other.outputs)
        part_of.update(dict.fromkeys(made, part))
    return list({id(part): part for part in part_of.values()}.values())


def _kernel(
    graph: OpGraph,
    ops: Sequence[OpNode],
    outputs: Sequence[int],
    repeats: Sequence[float],
    family: str = "",
) -> Kernel:
    made = {index for op in ops for index in op.outputs}
    # Attention splits the keys of few rows among tasks: by its scores, which are not written.
    shared = made if family in _KEEPS_TILES else set(outputs) & made
    read = [graph.tensors[i] for i in {index for op in ops for index in op.inputs} - made]
    written = [graph.tensors[i] for i in set(outputs) & made]
    flops: defaultdict[OpKind, float] = defaultdict(float)
    for op, times in zip(ops, repeats, strict=True):
        flops[op.kind] += op.flops * times * width(graph, op)
    return Kernel(
        flops=dict(flops),
        activation_bytes=sum(t.n_bytes for t in read if not t.is_constant),
        constant_bytes=sum(t.n_bytes for t in read if t.is_constant),
        written_bytes=sum(t.n_bytes for t in written),
        parallelism=max((graph.tensors[i].size for i in shared), default=1),
        effort=effort(graph, ops, repeats, family=family),
        starts_threads=starts_threads(graph, ops),
    )


def _repeats(graph: OpGraph) -> tuple[float, ...]:
    """Return how often each operator is evaluated inside the one kernel."""
    uses: defaultdict[int, float] = defaultdict(float)
    repeats = []
    for op in reversed(graph.ops):
        is_inlined = op.kind in INLINED and op.name not in _COPIED_ONCE
        times = max((uses[i] for i in op.outputs), default=1.0) if is_inlined else 1.0
        repeats.append(max(1.0, times))
        for index in op.inputs:
            uses[index] = max(uses[index], repeats[-1] * _reads(graph, op, index))
    return tuple(reversed(repeats))


def _reads(graph: OpGraph, op: OpNode, index: int) -> float:
    """Return how often ``op`` reads each element of one of its operands."""
    size = max(1, graph.tensors[index].size)
    match op.kind:
        case "matmul" | "conv":
            reads = op.flops / 2 / size
        case "pooling":
            reads = op.flops / size
        case "reduction" | "view":
            reads = 1.0
        case _:
            reads = max(graph.tensors[i].size for i in op.outputs) / size
    return max(1.0, reads)

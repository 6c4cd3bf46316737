"""The work of two anchors in one kernel, the second of which reads a stage of the first."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from tvmfuse.cost import geometry, kernel
from tvmfuse.cost.kernel import Kernel
from tvmfuse.plan import OpGraph, OpNode

FAMILY = "chained"

_ANCHORS = ("conv", "matmul", "pooling", "reduction")
# Rows of the second one's result for which the first one's rows are computed at a time.
_STAGE_ROWS = 14
# What the first one takes beside the same one in a kernel of its own: it is cut by the rows of
# the second one, not by tiles that suit it. Measured for convolutions before a pooling or a mean:
# 1.0 to 1.3 on Zen 5.
_CUT_BY_ROWS = 1.1
# Elements of the result that one row stands for where tasks are whole tiles of rows: eight
# rows are as much as a core wants (``roofline._GRAIN``).
_ROW_GRAIN = 32
# Weights of two products that stay in a core's second-level cache beside a stage (of 2 MiB;
# measured on Sapphire Rapids), and what of the rows between them makes a stage there.
_KEPT_BYTES = 768 << 10
_STAGE_BYTES = 512 << 10


def stages(graph: OpGraph) -> tuple[OpGraph, ...]:
    """Return the operators up to what the second anchor reads, and the others, as two graphs."""
    second = max(i for i, op in enumerate(graph.ops) if op.kind in _ANCHORS)
    reached = set(graph.ops[second].outputs)
    later = [graph.ops[second]]
    for op in graph.ops[second + 1 :]:
        if reached & set(op.inputs):
            reached |= set(op.outputs)
            later.append(op)
    sooner = [op for op in graph.ops if op not in later]
    return _part(graph, sooner), _part(graph, later)


def work(graph: OpGraph, *, family: str) -> tuple[Kernel, ...]:
    """Return :func:`kernel.together`, or :func:`together` for a chain."""
    return together(graph) if family == FAMILY else kernel.together(graph, family=family)


def together(graph: OpGraph) -> tuple[Kernel, ...]:
    """Return the work of each stage within the one kernel.

    The kernel starts once. What lies between is written, if only into cache, but not fetched
    again: to leave out the writing, too, would promise two to three times the measured gain.
    Rows that two stages need are computed twice. Two products can be split by rows alone:
    every core reads both weights whole, and where they are large, for every stage.

    Parameters
    ----------
    graph : OpGraph
        Of both anchors and their epilogues.
    """
    first, second = stages(graph)
    (sooner,), (later,) = (kernel.together(part, family=FAMILY) for part in (first, second))
    times = _overlap(second)
    flops = {kind: amount * times for kind, amount in sooner.flops.items()}
    slower = times * (1.0 if second.ops[0].kind == "matmul" else _CUT_BY_ROWS)
    effort = {kind: amount * slower for kind, amount in sooner.effort.items()}
    wakes = sooner.starts_threads or later.starts_threads
    others = later.activation_bytes - sooner.written_bytes
    parallelism, fetches = _parallelism(second, later), _fetches(second, sooner, later)
    return (
        replace(
            sooner,
            flops=flops,
            effort=effort,
            constant_bytes=fetches * sooner.constant_bytes,
            parallelism=parallelism,
            starts_threads=wakes,
        ),
        replace(
            later,
            activation_bytes=others,
            constant_bytes=fetches * later.constant_bytes,
            parallelism=parallelism,
            launches=0,
            starts_threads=wakes,
        ),
    )


def _parallelism(second: OpGraph, work: Kernel) -> int:
    """Return what the tasks of a chain can be split by, in elements."""
    op = second.ops[0]
    shape = second.tensors[op.outputs[0]].shape
    extents = [d for d in shape[:-1] if isinstance(d, int)]
    if op.kind != "matmul":
        return work.parallelism
    return min(work.parallelism, _ROW_GRAIN * math.prod(extents))


def _fetches(second: OpGraph, sooner: Kernel, later: Kernel) -> int:
    """Return how often the weights come from an outer cache, next to once by all cores."""
    weights = sooner.constant_bytes + later.constant_bytes
    if second.ops[0].kind != "matmul" or weights <= _KEPT_BYTES:
        return 1
    return 1 + math.ceil(sooner.written_bytes / _STAGE_BYTES)


def _overlap(second: OpGraph) -> float:
    """Return how often an element of the stage is computed, by the window that reads it."""
    op = second.ops[0]
    shape = geometry.main(second)
    rows = second.tensors[op.outputs[0]].shape[2:3]
    if op.kind != "pooling" or not rows or not isinstance(rows[0], int):
        return 1.0
    stages_ = rows[0] / min(rows[0], _STAGE_ROWS)
    shared = max(0.0, shape.window - shape.stride)
    return 1.0 + (stages_ - 1.0) * shared / (rows[0] * shape.stride)


def _part(graph: OpGraph, ops: Sequence[OpNode]) -> OpGraph:
    """Return some operators of a graph as a graph of their own."""
    used = dict.fromkeys(i for op in ops for i in (*op.inputs, *op.outputs))
    at = {index: i for i, index in enumerate(used)}
    made = {i for op in ops for i in op.outputs}
    read_outside = {i for op in graph.ops if op not in ops for i in op.inputs}
    return OpGraph(
        tensors=tuple(graph.tensors[index] for index in used),
        ops=tuple(
            replace(
                op,
                inputs=tuple(at[i] for i in op.inputs),
                outputs=tuple(at[i] for i in op.outputs),
            )
            for op in ops
        ),
        inputs=tuple(at[i] for i in used if i not in made),
        outputs=tuple(at[i] for i in used if i in made and i in read_outside | set(graph.outputs)),
    )

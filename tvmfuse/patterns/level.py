"""Independent kernels of one level in one launch, though they read different tensors.

A network's small branches (squeeze-and-excite gates, the heads of a detector) each wake
all threads for little work; together they do so once.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any

import numpy as np

from tvmfuse.patterns import references
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.epilogue import ANCHORS
from tvmfuse.patterns.siblings import matches

# As for siblings: what is far apart keeps its inputs alive too long.
_MAX_DISTANCE = 64
_MAX_PARTS = 8


def _three_branches(op: Any, x: Any, y: Any, z: Any, w: Any, k: Any) -> Any:
    pooled = op.nn.relu(op.mean(z, axis=[2, 3], keepdims=True))
    return op.nn.relu(op.matmul(x, w)), op.matmul(y, k), pooled


def _three_branches_reference(x: Any, y: Any, z: Any, w: Any, k: Any) -> Any:
    return np.maximum(x @ w, 0), y @ k, np.maximum(z.mean((2, 3), keepdims=True), 0)


def _two_images(op: Any, x: Any, y: Any, w: Any) -> Any:
    return op.nn.relu(op.nn.conv2d(x, w)), op.nn.conv2d(y, w)


def _two_images_reference(x: Any, y: Any, w: Any) -> Any:
    return np.maximum(references.conv2d(x, w), 0), references.conv2d(y, w)


def _one_after_another(op: Any, x: Any, y: Any, w: Any) -> Any:
    first = op.matmul(x, w)
    return op.matmul(y, first), op.exp(first)


def _cases() -> tuple[Case, ...]:
    weight = Operand((16, 24), is_constant=True, spread=0.25)
    return (
        Case(
            "two products and a mean of three tensors",
            {
                "x": Operand((5, 16)),
                "y": Operand((3, 16)),
                "z": Operand((1, 8, 6, 6)),
                "w": weight,
                "k": Operand((16, 8), is_constant=True, spread=0.25),
            },
            graph=_three_branches,
            reference=_three_branches_reference,
        ),
        Case(
            "one convolution of two images",
            {
                "x": Operand((1, 6, 7, 9)),
                "y": Operand((1, 6, 5, 5)),
                "w": Operand((8, 6, 3, 3), is_constant=True, spread=0.14),
            },
            graph=_two_images,
            reference=_two_images_reference,
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    square = Operand((4, 4))
    operands = {"x": square, "y": square, "w": square}
    return (Case("one depends on the other", operands, graph=_one_after_another),)


class Level(Generator):
    """Anchors with as many anchors before them, each with its epilogue, in one kernel.

    What depends on an anchor has more of them before it, so those of one level never
    wait for one another.
    """

    name = "level"
    is_multi_output = True
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield the anchors of each level that are near one another."""
        depths: list[int] = []
        open_: dict[tuple[int, int], list[int]] = {}
        for position, reads in enumerate(flow.deps):
            depth = max((depths[read] for read in reads), default=0)
            is_anchor = flow.kinds[position] in ANCHORS and flow.groupable[position]
            depths.append(depth + is_anchor)
            if not is_anchor:
                continue
            near = open_.setdefault((depth, flow.block_of[position]), [])
            is_full = len(near) == _MAX_PARTS
            if near and (is_full or position - near[0] > _MAX_DISTANCE):
                yield from _joined(flow, near)
                near.clear()
            near.append(position)
        for near in open_.values():
            yield from _joined(flow, near)


def _joined(flow: Dataflow, anchors: list[int]) -> Iterator[Match]:
    if len(anchors) > 1:
        yield from matches(flow, anchors)

"""Steps that a task computes before its tiles, into scratch: statistics, prepared rows."""

from __future__ import annotations

from collections.abc import Sequence

from tvmfuse.kernels import blocks
from tvmfuse.kernels.blocks import Block, Loop, Schedule


def compute_first(sch: Schedule, placed: Sequence[Block], task: Loop, lanes: int) -> None:
    """Compute every block that is not yet ``placed`` at the start of ``task``.

    Parameters
    ----------
    sch : Schedule
        The schedule.
    placed : sequence of blocks
        The output, and what already has its loop.
    task : Loop
        The loop over tasks.
    lanes : int
        Elements of one vector.
    """
    steps = [
        block
        for block in blocks.children(sch)
        if not any(blocks.same(sch, block, other) for other in placed)
    ]
    for step in reversed(steps):
        sch.compute_at(step, task, preserve_unit_loops=True)
    for step in steps:
        vectorize_step(sch, step, task, lanes)


def vectorize_step(sch: Schedule, step: Block, outer: Loop, lanes: int) -> None:
    """Vectorise what ``step`` computes below ``outer``: its last wide axis, sums outside it."""
    spatial, reduced = blocks.inner_loops(sch, step, outer)
    wide = [loop for loop in spatial if blocks.extent(sch, loop) > 1]
    *rest, last = wide if wide else spatial
    is_wide = bool(wide) and blocks.is_last_axis(sch, step, last)
    if reduced:
        sch.reorder(*rest, *reduced, last) if is_wide else sch.reorder(*spatial, *reduced)
    if is_wide:
        blocks.vectorize_with_tail(sch, last, lanes)
    if reduced:
        sch.decompose_reduction(step, reduced[0])

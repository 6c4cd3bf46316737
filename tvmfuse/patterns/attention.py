"""Attention: scores, softmax and context as one kernel, without a score matrix.

Exporters write the same computation with the scale before or after the product,
masks added or chosen by ``where``, rows that are masked throughout guarded or not,
heads repeated for their groups, and transposes on any operand;
:func:`attention_parts.read` takes them apart into what the kernel needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from tvmfuse.patterns import operators
from tvmfuse.patterns.attention_examples import CASES
from tvmfuse.patterns.attention_near_misses import NEAR_MISSES
from tvmfuse.patterns.attention_parts import Attention, read
from tvmfuse.patterns.base import Generator, Match
from tvmfuse.patterns.dataflow import Dataflow


def _is_float32(flow: Dataflow, found: Attention) -> bool:
    return all(
        operators.dtype(flow.value(i)) in ("float32", "bool")
        and all(isinstance(d, int) for d in flow.shapes[i] or ("?",))
        for i in found.members
    )


class FusedAttention(Generator):
    """Softmax of scores between two products."""

    name = "attention"
    cases = CASES
    near_misses = NEAR_MISSES

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield the attention around every softmax."""
        for position, operator in enumerate(flow.operators):
            if operator == "relax.nn.softmax" and flow.groupable[position]:
                found = read(flow, position)
                if found is not None and _is_float32(flow, found):
                    yield Match(found.members, "attention")

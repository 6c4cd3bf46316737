"""Any anchor with the elementwise operators that follow it.

The safety net under the named patterns: nothing that one kernel could do is
lost because nobody wrote a pattern for it.
"""

from __future__ import annotations

from collections.abc import Iterator, Set

from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Generator, Match
from tvmfuse.patterns.dataflow import Dataflow

_ANCHORS = ("conv", "matmul", "pooling", "reduction")
_MAX_OPERATORS = 16


class Epilogue(Generator):
    """An anchor and each prefix of the elementwise operators after it.

    An operator belongs to the epilogue if it works on the anchor's shape. Its
    other operands may be any tensors that do not depend on the anchor.
    """

    name = "epilogue"

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield every prefix of each anchor's epilogue, the shortest first."""
        for anchor in range(len(flow.bindings)):
            if flow.kinds[anchor] in _ANCHORS and flow.groupable[anchor]:
                for members in prefixes(flow, anchor):
                    yield Match(members, operators.family(flow.value(anchor)))


def prefixes(flow: Dataflow, anchor: int) -> Iterator[tuple[int, ...]]:
    """Yield ``anchor`` with ever more of its epilogue.

    Only sets with one result are yielded; a value inside may have several readers
    as long as all of them are inside too, as in ``x * sigmoid(x)``.
    """
    members = {anchor}
    refused: set[int] = set()
    while len(members) < _MAX_OPERATORS:
        added = _next(flow, anchor, members, refused)
        if added is None:
            return
        members.add(added)
        if len(flow.outputs(members)) == 1:
            yield tuple(sorted(members))


def _next(flow: Dataflow, anchor: int, members: set[int], refused: set[int]) -> int | None:
    """Return the first reader of ``members`` that can join them."""
    readers = {user for member in members for user in flow.users[member]} - members - refused
    for reader in sorted(readers):
        if _fits(flow, anchor, reader) and flow.is_convex(members | {reader}):
            return reader
        refused.add(reader)
    return None


def _fits(flow: Dataflow, anchor: int, reader: int) -> bool:
    return (
        flow.kinds[reader] in ("elementwise", "broadcast")
        and flow.groupable[reader]
        and operators.shape(flow.value(reader)) == operators.shape(flow.value(anchor))
        and flow.block_of[reader] == flow.block_of[anchor]
    )

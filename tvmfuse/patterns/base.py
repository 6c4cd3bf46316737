"""What a pattern is, and what it finds.

A *generator* proposes sets of bindings that may become one kernel. Legality
that needs the whole function (leaks, cycles, purity) is checked once, centrally,
by ``passes.collect``; a generator answers only for its own kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Set
from dataclasses import dataclass

from tvmfuse.patterns.dataflow import Dataflow


@dataclass(frozen=True)
class Match:
    """Bindings that a pattern proposes, or refuses, to fuse.

    Parameters
    ----------
    bindings : tuple of int
        Positions in the function, ascending.
    family : str
        Kernel family that would run them.
    refusal : str
        Why the pattern's own check said no; "" where it said yes.
    """

    bindings: tuple[int, ...]
    family: str
    refusal: str = ""


class Generator(ABC):
    """Proposes sets of bindings of one function that may become one kernel."""

    name: str
    """What plans, reports and errors call it."""

    is_multi_output: bool = False
    """Whether its groups may return several values."""

    @abstractmethod
    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield matches in ``flow``, overlapping ones included.

        Parameters
        ----------
        flow : Dataflow
            The function.
        taken : set of int
            Bindings in legal matches of the generators before this one.
        """

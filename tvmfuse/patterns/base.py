"""What a pattern is, and what it finds.

A *generator* proposes sets of bindings that may become one kernel; a *pattern* is
the generator of one computation, written down as a graph. Legality that needs the
whole function (leaks, cycles, purity) is checked once, centrally, by
``passes.collect``; a generator answers only for its own kind.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.trace import Found, Graph, Traced, trace


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


@dataclass(frozen=True)
class Operand:
    """One operand of a case.

    Parameters
    ----------
    shape : tuple of int
        Its extents.
    is_constant : bool
        Whether the compiler knows its value, as it knows a weight's.
    spread : float
        Standard deviation of its values; weights are small so that sums stay about one.
    dtype : str
        Its type where that is none of those that the case is run with, as of indices.
    bounds : tuple of int
        The least integer and what is above the largest one, where it holds integers.
    """

    shape: tuple[int, ...]
    is_constant: bool = False
    spread: float = 1.0
    dtype: str = ""
    bounds: tuple[int, int] = (-8, 8)


@dataclass(frozen=True)
class Case:
    """One example that a pattern must match, or (a near miss) must refuse.

    Parameters
    ----------
    name : str
        What is special about it.
    operands : Mapping of str to Operand
        Operands of the graph by name; those it does not use are left out.
    options : Mapping of str to object
        Keyword arguments of the graph.
    graph : callable, optional
        A graph of its own, for what surrounds the pattern; default the pattern's.
    reference : callable, optional
        The result of that graph by NumPy in float64; a tuple for several results.
    """

    name: str
    operands: Mapping[str, Operand]
    options: Mapping[str, Any] = field(default_factory=dict)
    graph: Graph | None = None
    reference: Callable[..., Any] | None = None


class Generator(ABC):
    """Proposes sets of bindings of one function that may become one kernel."""

    name: str
    """What plans, reports and errors call it."""

    is_multi_output: bool = False
    """Whether its groups may return several values."""

    cases: Sequence[Case] = ()
    """Examples that it must match as a whole, exactly once."""

    near_misses: Sequence[Case] = ()
    """Graphs that it must not match as a whole."""

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


class Pattern(Generator):
    """One computation, written as the graph that it replaces.

    A subclass gives ``name``, ``family``, :meth:`graph`, :meth:`reference` and
    ``cases``; :meth:`options` where the graph has variants, :meth:`check` where the
    operators alone do not make a match.
    """

    family: str
    """Kernel family that runs its matches."""

    @abstractmethod
    def graph(self, op: Any, *operands: Any, **options: Any) -> Any:
        """Compute the pattern with ``op``, which stands for ``relax.op``.

        Called with a tracer it becomes a dataflow pattern, called with a builder it
        becomes the example of a case. Attributes given by keyword are free in the
        pattern; :meth:`check` looks at them.
        """

    @abstractmethod
    def reference(self, *operands: Any, **options: Any) -> Any:
        """Compute the same with NumPy, operands in float64."""

    def options(self) -> Iterator[Mapping[str, Any]]:
        """Yield the keyword arguments of each variant of the graph."""
        yield {}

    def check(self, found: Found) -> str:
        """Say why a match is not what the pattern means; "" where it is."""
        return ""

    def lower(self, *operands: Any) -> Any:
        """Write the kernel of a match as tensor expressions; None leaves it to ours.

        Parameters
        ----------
        *operands : te.Tensor
            What the match reads from outside: values in the order that its operators
            first read them, then constants.

        Returns
        -------
        te.Tensor, list of te.Tensor or None
            The results.
        """
        return None

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield a match for each variant at each binding that can be its root."""
        for position, operator in enumerate(flow.operators):
            variants = self._traced.get(operator)
            if not variants:
                continue
            near = flow.before(position, max(traced.depth for traced in variants))
            for traced in variants:
                found = traced.match(flow, position, near)
                if found is not None:
                    yield Match(found.members, self.family, self.check(found))

    @property
    def variants(self) -> Sequence[Traced]:
        """Every variant of the graph."""
        return [traced for variants in self._traced.values() for traced in variants]

    @cached_property
    def _traced(self) -> Mapping[str, Sequence[Traced]]:
        """Every variant, by the operator of its root."""
        by_root: dict[str, list[Traced]] = {}
        for options in self.options():
            traced = trace(self.graph, **options)
            by_root.setdefault(traced.root, []).append(traced)
        return by_root

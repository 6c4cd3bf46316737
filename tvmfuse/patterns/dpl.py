"""A dataflow pattern of TVM's, used as it is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvmfuse._tvm import relax, tvm
from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Case, Generator, Match
from tvmfuse.patterns.dataflow import Dataflow

# TVM's matcher walks everything that it is shown, so it is shown no more than this.
_DEEPEST = 32


@dataclass(frozen=True, eq=False)
class Context:
    """What TVM hands to the ``check`` of a ``FusionPattern``; it can make one only itself.

    Parameters
    ----------
    matched_expr : relax.Expr
        The root of the match.
    annotated_expr : Mapping of str to relax.Expr
        What the named parts of the pattern matched.
    matched_bindings : Mapping of relax.Var to relax.Expr
        Variables in the match, and what they are bound to.
    flow : Dataflow
        The function.
    """

    matched_expr: Any
    annotated_expr: Mapping[str, Any]
    matched_bindings: Mapping[Any, Any]
    flow: Dataflow

    @cached_property
    def var_usages(self) -> Mapping[Any, Sequence[Any]]:
        """The variables whose bindings read each variable of the function."""
        return {
            self.flow.var(i): [self.flow.var(user) for user in users]
            for i, users in enumerate(self.flow.users)
        }

    @cached_property
    def value_to_bound_var(self) -> Mapping[Any, Any]:
        """The variable that each expression of the function is bound to."""
        return {value: self.flow.var(i) for value, i in self.flow.position_of_value.items()}


class Wrapped(Generator):
    """A pattern of TVM's pattern language, as ``FuseOpsByPattern`` takes it.

    Parameters
    ----------
    name : str
        What plans and reports call it.
    pattern : relax.dpl.DFPattern
        What to match.
    check : callable, optional
        Takes a :class:`Context` and tells whether the match is meant.
    annotations : Mapping of str to DFPattern
        Parts of the pattern that ``check`` asks for by name.
    family : str
        Kernel family; where not given, that of the match's heaviest operator.
    cases, near_misses : sequence of Case
        Examples with a graph and a reference of their own.
    """

    def __init__(
        self,
        name: str,
        pattern: Any,
        *,
        check: Callable[[Any], bool] | None = None,
        annotations: Mapping[str, Any] | None = None,
        family: str = "",
        cases: Sequence[Case] = (),
        near_misses: Sequence[Case] = (),
    ) -> None:
        self.name = name
        self.cases = cases
        self.near_misses = near_misses
        self._pattern = pattern
        self._check = check
        self._annotations = annotations or {}
        self._family = family

    @classmethod
    def of(cls, given: Any, **more: Any) -> Wrapped:
        """Wrap a ``relax.transform.FusionPattern``; ``more`` may hold family and cases."""
        return cls(
            str(given.name),
            given.pattern,
            check=given.check,
            annotations=dict(given.annotation_patterns.items()),
            **more,
        )

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield the match that ends in each binding, if there is one."""
        depth, roots = _depth(self._pattern), _roots(self._pattern)
        for position, operator in enumerate(flow.operators):
            if roots and operator not in roots:
                continue
            near = flow.before(position, depth)
            matched = self._pattern.extract_matched_expr(flow.value(position), near.values)
            if matched is not None:
                yield self._match(flow, position, matched)

    def _match(self, flow: Dataflow, position: int, matched: Any) -> Match:
        members = {position}
        for pattern, expr in matched.items():
            if isinstance(pattern, relax.dpl.CallPattern | relax.dpl.TupleGetItemPattern):
                members.add(flow.position_of_value[expr])
        bindings = tuple(sorted(members))
        heaviest = max(bindings, key=lambda i: operators.flops(flow.value(i)))
        family = self._family or operators.family(flow.value(heaviest))
        context = Context(
            flow.value(position),
            {n: matched[p] for n, p in self._annotations.items() if p in matched},
            {flow.var(i): flow.value(i) for i in bindings},
            flow,
        )
        if self._check is not None and not self._check(context):
            return Match(bindings, family, "its check says no")
        return Match(bindings, family)


def _parts(pattern: Any) -> list[Any]:
    """Return the patterns that a pattern is directly made of."""
    dpl = relax.dpl
    if isinstance(pattern, dpl.CallPattern):
        return list(pattern.args or ())
    if isinstance(pattern, dpl.OrPattern | dpl.AndPattern):
        return [pattern.left, pattern.right]
    if isinstance(pattern, dpl.TuplePattern | dpl.UnorderedTuplePattern):
        return list(pattern.fields)
    if isinstance(pattern, dpl.TupleGetItemPattern):
        return [pattern.tuple]
    inner = getattr(pattern, "pattern", None)  # a constraint on another pattern
    return [inner] if isinstance(inner, dpl.DFPattern) else []


def _depth(pattern: Any) -> int:
    """Return how many bindings lie at most between the root of a match and its end."""

    def depth(part: Any) -> int:
        below = max(map(depth, _parts(part)), default=0)
        is_step = isinstance(part, relax.dpl.CallPattern | relax.dpl.TupleGetItemPattern)
        return below + is_step

    return min(depth(pattern), _DEEPEST)


def _roots(pattern: Any) -> frozenset[str]:
    """Return the operators that a match may end in; none where any may."""
    dpl = relax.dpl
    if isinstance(pattern, dpl.CallPattern):
        op = getattr(pattern.op, "expr", None)
        return frozenset({str(op.name)}) if isinstance(op, tvm.ir.Op) else frozenset()
    if isinstance(pattern, dpl.OrPattern):
        left, right = _roots(pattern.left), _roots(pattern.right)
        return left | right if left and right else frozenset()
    if isinstance(pattern, dpl.TupleGetItemPattern | dpl.TuplePattern):
        return frozenset()
    parts = _parts(pattern)
    return _roots(parts[0]) if len(parts) == 1 else frozenset()

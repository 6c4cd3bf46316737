"""How near a pattern comes to matching, and which of its conditions fails first.

The walk goes from the result of a graph towards its operands, as TVM's matcher
does, and keeps what the matcher throws away: how far it came.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tvmfuse._tvm import relax, tvm
from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Pattern
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.trace import Traced, TracedCall, holds


@dataclass(frozen=True)
class NearMiss:
    """A place that some variant of a pattern nearly matches.

    Parameters
    ----------
    pattern : str
        Its name.
    function : str
        The function.
    bindings : tuple of int
        The operators that fit, ascending; the last one is the result.
    total : int
        How many operators the variant has.
    condition : str
        The first condition that failed, and where.
    at : int or None
        The operator that failed it; None where it is none.
    has_anchor : bool
        Whether an operator that the variant is about (a product, a reduction, say) is among
        those that fit; where it is about none, whether most of its operators are.
    """

    pattern: str
    function: str
    bindings: tuple[int, ...]
    total: int
    condition: str
    at: int | None = None
    has_anchor: bool = True

    @property
    def nearness(self) -> tuple[float, int, int]:
        """The part of the operators that fits, then their number, then how late it ends."""
        return len(self.bindings) / self.total, len(self.bindings), self.bindings[-1]


def near_misses(pattern: Pattern, flow: Dataflow) -> list[NearMiss]:
    """Return the places that a pattern nearly matches, the nearest first.

    Parameters
    ----------
    pattern : Pattern
        The pattern.
    flow : Dataflow
        A function in canonical form.

    Returns
    -------
    list of NearMiss
        One for each place where the last operator fits and no variant does.
    """
    by_root: dict[str, list[Traced]] = {}
    for variant in pattern.variants:
        by_root.setdefault(variant.root, []).append(variant)
    found = []
    for position, operator in enumerate(flow.operators):
        partials = [(v, _walk(v, flow, position)) for v in by_root.get(operator, ())]
        if partials and all(partial.condition for _, partial in partials):
            misses = (
                NearMiss(
                    pattern.name,
                    flow.name,
                    tuple(sorted(partial.members)),
                    len(variant.calls),
                    partial.condition,
                    partial.at,
                    _has_anchor(variant, flow, partial),
                )
                for variant, partial in partials
            )
            found.append(max(misses, key=lambda miss: miss.nearness))
    return sorted(found, key=lambda miss: miss.nearness, reverse=True)


@dataclass(frozen=True, eq=False)
class _Partial:
    """What of a graph has been matched, and what stopped it; "" where nothing did."""

    bound: Mapping[Any, Any] = field(default_factory=dict)
    members: frozenset[int] = frozenset()
    condition: str = ""
    at: int | None = None

    def failed(self, condition: str, at: int | None = None) -> _Partial:
        return replace(self, condition=condition, at=at)

    def binding(self, pattern: Any, expr: Any) -> _Partial:
        return replace(self, bound={**self.bound, pattern: expr})


def _has_anchor(variant: Traced, flow: Dataflow, partial: _Partial) -> bool:
    if any(operators.is_anchor(call.operator) for call in variant.calls.values()):
        return any(operators.is_anchor(flow.operators[member]) for member in partial.members)
    return 2 * len(partial.members) > len(variant.calls)


def _walk(variant: Traced, flow: Dataflow, position: int) -> _Partial:
    return _Walk(variant, flow).visit(variant.pattern, flow.var(position), _Partial())


@dataclass(frozen=True, eq=False)
class _Walk:
    variant: Traced
    flow: Dataflow

    def visit(self, pattern: Any, expr: Any, partial: _Partial) -> _Partial:
        """Match ``pattern`` with ``expr`` on top of what is matched already."""
        if partial.condition:
            return partial
        if pattern in partial.bound:
            if partial.bound[pattern].same_as(expr):
                return partial
            names = self._name(expr), self._name(partial.bound[pattern])
            return partial.failed("{} and {} must be one value".format(*names))
        call = self.variant.calls.get(pattern)
        if call is not None:
            return self._visit_call(pattern, call, expr, partial)
        if pattern in self.variant.constants:
            condition = self._unfit_constant(expr, self.variant.constants[pattern])
            if condition:
                return partial.failed(condition)
        return partial.binding(pattern, expr)

    def _visit_call(self, pattern: Any, call: TracedCall, expr: Any, partial: _Partial) -> _Partial:
        wanted = _short(call.operator)
        position = self.flow.position.get(expr)
        if position is None:
            kind = "a constant" if _is_constant(expr) else "an input"
            return partial.failed(f"{self._name(expr)} must be {wanted}, but is {kind}")
        found = self.flow.operators[position]
        if found != call.operator:
            kind = _short(found) if found else "no operator"
            return partial.failed(f"{self._name(expr)} must be {wanted}, but is {kind}", position)
        args = operators.tensors(self.flow.value(position))
        if len(args) < len(call.operands):
            return partial.failed(
                f"{self._name(expr)} must have {len(call.operands)} operands, but has {len(args)}"
            )
        partial = partial.binding(pattern, expr)
        partial = replace(partial, members=partial.members | {position})
        orders: list[Sequence[Any]] = [args]
        if call.is_commutative:
            orders.append(args[::-1])
        return max(
            (self._visit_all(call.operands, order, partial) for order in orders),
            key=lambda result: (not result.condition, len(result.members)),
        )

    def _visit_all(
        self, patterns: Sequence[Any], exprs: Sequence[Any], partial: _Partial
    ) -> _Partial:
        for pattern, expr in zip(patterns, exprs, strict=False):
            partial = self.visit(pattern, expr, partial)
        return partial

    def _unfit_constant(self, expr: Any, value: float | None) -> str:
        if not _is_constant(expr):
            return f"{self._name(expr)} must be a constant"
        if value is not None and not holds(expr, value):
            return f"a constant must be {value:g}"
        return ""

    def _name(self, expr: Any) -> str:
        position = self.flow.position.get(expr)
        if position is not None:
            return self.flow.labels[position]
        return str(expr.name) if isinstance(expr, relax.Var) else "a constant"


def _is_constant(expr: Any) -> bool:
    return isinstance(expr, tvm.ir.GenericConst)


def _short(operator: str) -> str:
    return operator.removeprefix("relax.")

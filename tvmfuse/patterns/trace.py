"""Write a computation once; get a pattern from it, and the computation itself.

A *graph* is a function ``graph(op, x, …)`` that calls ``op.add(x, y)``,
``op.nn.relu(x)`` and so on, as ``relax.op`` is called. Called with a
:class:`Tracer` it becomes a Relax dataflow pattern, called with a
:class:`Builder` it becomes Relax bindings. So the two cannot drift apart.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.errors import PatternError
from tvmfuse.patterns.dataflow import Dataflow, Neighbourhood

Graph = Callable[..., Any]

# With these, the order of the operands does not matter, so both orders match.
_COMMUTATIVE = ("add", "multiply", "maximum", "minimum")

# A constant in a model file is rounded to its type, often after a computation of its own.
_CONSTANT_RTOL = {"float16": 2e-3, "bfloat16": 1e-2}


# A constant that stands for a number is small, even where a model stretched it.
_MAX_UNIFORM = 4096


@dataclass(frozen=True, eq=False)
class Found:
    """Where a traced graph was found.

    Parameters
    ----------
    flow : Dataflow
        The function.
    members : tuple of int
        Positions of its operators, ascending; the last one is its root.
    operands : Mapping of str to relax.Expr
        What each parameter of the graph stands for: a variable or a constant.
    """

    flow: Dataflow
    members: tuple[int, ...]
    operands: Mapping[str, Any]

    def call(self, operator: str) -> Any:
        """Return the first matched call of ``operator``, for example ``relax.clip``."""
        return next(self.calls(operator))

    def calls(self, operator: str) -> Iterator[Any]:
        """Yield the matched calls of ``operator`` in program order."""
        for member in self.members:
            if self.flow.operators[member] == operator:
                yield self.flow.value(member)

    @property
    def root(self) -> Any:
        """The call whose value is the result."""
        return self.flow.value(self.members[-1])


@dataclass(frozen=True, eq=False)
class TracedCall:
    """One operator of a traced graph.

    Parameters
    ----------
    operator : str
        For example ``relax.add``.
    operands : tuple of DFPattern
        Its tensors, in order.
    depth : int
        The longest way to an operator that it is computed from, in steps.
    """

    operator: str
    operands: tuple[Any, ...]
    depth: int

    @property
    def is_commutative(self) -> bool:
        """Whether its operands may be swapped."""
        return self.operator.removeprefix("relax.") in _COMMUTATIVE


@dataclass(frozen=True, eq=False)
class Traced:
    """A graph as a dataflow pattern.

    Parameters
    ----------
    pattern : DFPattern
        The pattern of its result.
    root : str
        The operator of its result.
    operators : frozenset of str
        All its operators.
    depth : int
        The longest way from its result to an operator, in steps.
    operands : Mapping of str to DFPattern
        The wildcard of each parameter.
    constants : Mapping of DFPattern to float or None
        Constants inside, with the value that each must have, if any.
    calls : Mapping of DFPattern to TracedCall
        Its operators, those that others read first.
    """

    pattern: Any
    root: str
    operators: frozenset[str]
    depth: int
    operands: Mapping[str, Any]
    constants: Mapping[Any, float | None]
    calls: Mapping[Any, TracedCall]

    def match(self, flow: Dataflow, position: int, near: Neighbourhood) -> Found | None:
        """Match the graph so that its result is the binding at ``position``.

        Parameters
        ----------
        flow : Dataflow
            The function.
        position : int
            A binding of :attr:`root`.
        near : Neighbourhood
            What is before it, at least :attr:`depth` deep.
        """
        if not self.operators <= near.operators:
            return None
        matched = self.pattern.extract_matched_expr(flow.value(position), near.values)
        if matched is None:
            return None
        for pattern, value in self.constants.items():
            if value is not None and not holds(matched[pattern], value):
                return None
        members = {
            flow.position_of_value[expr]
            for pattern, expr in matched.items()
            if isinstance(pattern, relax.dpl.CallPattern)
        }
        operands = {
            name: _as_operand(flow, matched[pattern])
            for name, pattern in self.operands.items()
            if pattern in matched
        }
        return Found(flow, tuple(sorted(members)), operands)


def trace(graph: Graph, **options: Any) -> Traced:
    """Turn a graph into a pattern.

    Parameters
    ----------
    graph : callable
        ``graph(op, x, …, *, option, …)``: positional parameters are operands.
    **options
        Values of its keyword-only parameters.

    Raises
    ------
    PatternError
        The graph does not end in an operator.
    """
    tracer = Tracer()
    operands = {name: relax.dpl.wildcard() for name in operand_names(graph)}
    result = graph(tracer, *operands.values(), **options)
    root = tracer.calls.get(result)
    if root is None:
        raise PatternError(
            f"{getattr(graph, '__qualname__', graph)}: a graph must return the result of an "
            f"operator, but returned {type(result).__name__}: call one on op"
        )
    return Traced(
        pattern=result,
        root=root.operator,
        operators=frozenset(call.operator for call in tracer.calls.values()),
        depth=root.depth,
        operands=operands,
        constants=dict(tracer.constants),
        calls=dict(tracer.calls),
    )


def operand_names(graph: Graph) -> tuple[str, ...]:
    """Return the names of a graph's operands: its positional parameters after ``op``."""
    parameters = list(inspect.signature(graph).parameters.values())
    return tuple(p.name for p in parameters[1:] if p.kind is p.POSITIONAL_OR_KEYWORD)


@dataclass(eq=False)
class Tracer:
    """Stands in for ``relax.op`` and builds dataflow patterns."""

    calls: dict[Any, TracedCall] = field(default_factory=dict)
    constants: dict[Any, float | None] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return _TracedOperator(self, name)

    def const(self, value: float) -> Any:
        """Stand for a constant that must have this value."""
        return self._constant(value)

    def any_const(self, example: float) -> Any:
        """Stand for a constant of any value; ``example`` is used when building."""
        return self._constant(None)

    def _constant(self, value: float | None) -> Any:
        pattern = relax.dpl.is_const()
        self.constants[pattern] = value
        return pattern

    def call(self, name: str, args: tuple[Any, ...]) -> Any:
        """Return the pattern of a call; attributes are free, ``check`` looks at them."""
        operator = relax.dpl.is_op(f"relax.{name}")
        # What is no tensor (bounds, shapes) follows the tensors, and is free as well.
        operands = [arg for arg in args if isinstance(arg, relax.dpl.DFPattern)]
        pattern = operator(*operands, varg_default_wildcard=True)
        if name in _COMMUTATIVE:
            pattern = pattern | operator(*reversed(operands), varg_default_wildcard=True)
        below = (self.calls[operand].depth for operand in operands if operand in self.calls)
        depth = 1 + max(below, default=-1)
        self.calls[pattern] = TracedCall(f"relax.{name}", tuple(operands), depth)
        return pattern


@dataclass(frozen=True, eq=False)
class _TracedOperator:
    tracer: Tracer
    name: str

    def __getattr__(self, name: str) -> Any:
        return _TracedOperator(self.tracer, f"{self.name}.{name}")

    def __call__(self, *args: Any, **attributes: Any) -> Any:
        return self.tracer.call(self.name, args)


@dataclass(frozen=True, eq=False)
class Builder:
    """Stands in for ``relax.op`` and emits each call as a binding.

    Parameters
    ----------
    block : relax.BlockBuilder
        Inside a dataflow block.
    dtype : str
        Type of the constants in the graph.
    """

    block: Any
    dtype: str

    def __getattr__(self, name: str) -> Any:
        return _BuiltOperator(self.block, getattr(relax.op, name))

    def const(self, value: float) -> Any:
        """Return a constant of shape ()."""
        return relax.const(np.asarray(value, self.dtype), self.dtype)

    def any_const(self, example: float) -> Any:
        """Return a constant of shape () with the example's value."""
        return self.const(example)


@dataclass(frozen=True, eq=False)
class _BuiltOperator:
    block: Any
    target: Any

    def __getattr__(self, name: str) -> Any:
        return _BuiltOperator(self.block, getattr(self.target, name))

    def __call__(self, *args: Any, **attributes: Any) -> Any:
        return self.block.emit(self.target(*args, **attributes))


def _as_operand(flow: Dataflow, expr: Any) -> Any:
    """Return the variable that an expression is bound to, or the expression."""
    position = flow.position_of_value.get(expr)
    return expr if position is None else flow.var(position)


def holds(expr: Any, value: float) -> bool:
    """Tell whether every element of a constant is ``value``, but for its rounding."""
    if math.prod(expr.value.shape) > _MAX_UNIFORM:
        return False
    rtol = _CONSTANT_RTOL.get(str(expr.ty.dtype), 1e-4)
    return bool(np.allclose(expr.value.numpy().astype("float64"), value, rtol=rtol, atol=0.0))

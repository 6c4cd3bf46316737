"""A Relax function as a graph of its bindings, indexed once and read by all."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from tvmfuse._tvm import relax, tvm
from tvmfuse._tvm.labels import label, label_of
from tvmfuse.patterns import operators
from tvmfuse.plan import OpKind


@dataclass(frozen=True, eq=False)
class Neighbourhood:
    """The bindings shortly before one binding.

    Parameters
    ----------
    values : Map of relax.Var to relax.Expr
        What each variable is bound to, in the form that TVM's matcher takes. The matcher
        walks all of it at every call, so it must be short.
    operators : frozenset of str
        Every operator among them.
    """

    values: Any
    operators: frozenset[str]


@dataclass(frozen=True, eq=False)
class Dataflow:
    """The bindings of one function, in program order, and who reads whom.

    Parameters
    ----------
    name : str
        Name of the function.
    bindings : tuple of relax.Binding
        Every binding of its top-level blocks; a position counts over all blocks.
    block_of : tuple of int
        The block of each binding.
    pure_blocks : frozenset of int
        The blocks that are dataflow blocks, whose bindings may be reordered.
    deps, users : tuple of tuple of int
        For each binding, the earlier ones that it reads and the later ones that read it.
    escaping : frozenset of int
        The bindings whose value the function returns.
    """

    name: str
    bindings: tuple[Any, ...]
    block_of: tuple[int, ...]
    pure_blocks: frozenset[int]
    deps: tuple[tuple[int, ...], ...]
    users: tuple[tuple[int, ...], ...]
    escaping: frozenset[int]

    @classmethod
    def of(cls, name: str, function: Any) -> Dataflow:
        """Index ``function``, whose body must be normalised."""
        blocks = function.body.blocks
        bindings = [binding for block in blocks for binding in block.bindings]
        block_of = [i for i, block in enumerate(blocks) for _ in block.bindings]
        deps = _dependencies(bindings)
        users: list[list[int]] = [[] for _ in bindings]
        for position, reads in enumerate(deps):
            for read in reads:
                users[read].append(position)
        position_of = {binding.var: i for i, binding in enumerate(bindings)}
        returned = relax.analysis.free_vars(function.body.body)
        return cls(
            name=name,
            bindings=tuple(bindings),
            block_of=tuple(block_of),
            pure_blocks=frozenset(
                i for i, block in enumerate(blocks) if isinstance(block, relax.DataflowBlock)
            ),
            deps=deps,
            users=tuple(tuple(items) for items in users),
            escaping=frozenset(position_of[var] for var in returned if var in position_of),
        )

    @cached_property
    def position(self) -> Mapping[Any, int]:
        """Position of the binding that defines each variable."""
        return {binding.var: i for i, binding in enumerate(self.bindings)}

    @cached_property
    def position_of_value(self) -> Mapping[Any, int]:
        """Position of the binding that holds each bound expression; aliases are left out."""
        return {
            self.value(i): i
            for i in range(len(self.bindings))
            if not isinstance(self.value(i), relax.Var)
        }

    @cached_property
    def readers_of_constant(self) -> Mapping[Any, int]:
        """How many bindings read each constant."""
        return Counter(
            constant
            for i in range(len(self.bindings))
            for constant in dict.fromkeys(constants(self.value(i)))
        )

    @cached_property
    def operators(self) -> tuple[str, ...]:
        """Operator of each binding, "" where it is none."""
        return tuple(operators.name(self.value(i)) for i in range(len(self.bindings)))

    @cached_property
    def kinds(self) -> tuple[OpKind, ...]:
        """Kind of each binding's operator; taking a tuple apart is a view."""
        return tuple(_kind(self.value(i)) for i in range(len(self.bindings)))

    @cached_property
    def shapes(self) -> tuple[tuple[int | str, ...] | None, ...]:
        """Extents of what each binding computes, None where it is no tensor of known shape."""
        return tuple(operators.shape(self.value(i)) for i in range(len(self.bindings)))

    @cached_property
    def groupable(self) -> tuple[bool, ...]:
        """Whether each binding is an operator that can become a kernel of its own."""
        return tuple(operators.is_groupable(self.value(i)) for i in range(len(self.bindings)))

    @cached_property
    def labels(self) -> tuple[str, ...]:
        """What a person calls each binding: its name in the model file, else its variable's."""
        return tuple(self._label(binding) for binding in self.bindings)

    def _label(self, binding: Any) -> str:
        """Return the label of a binding; what is taken out of a tuple is named by the tuple."""
        if isinstance(binding.value, relax.TupleGetItem):
            source = self.position.get(binding.value.tuple_value)
            if source is not None and (known := label(self.value(source))):
                return known
        return label_of(binding)

    def value(self, position: int) -> Any:
        """Return the expression bound at ``position``."""
        return _value(self.bindings[position])

    def var(self, position: int) -> Any:
        """Return the variable bound at ``position``."""
        return self.bindings[position].var

    def private_source(self, position: int, operand: Any) -> int | None:
        """Return where an operand of a binding is computed, if nobody else reads it."""
        source = self.position.get(operand)
        if source is None or source in self.escaping or self.users[source] != (position,):
            return None
        return source

    def before(self, position: int, depth: int) -> Neighbourhood:
        """Return ``position`` and what it is computed from in at most ``depth`` steps."""
        reached = frontier = {position}
        for _ in range(depth):
            frontier = {read for i in frontier for read in self.deps[i]} - reached
            reached = reached | frontier
        values = {self.var(i): self.value(i) for i in reached}
        operators_ = frozenset(self.operators[i] for i in reached)
        return Neighbourhood(tvm.runtime.convert(values), operators_)

    def outputs(self, members: Iterable[int]) -> tuple[int, ...]:
        """Return the members that something outside reads, or that the function returns."""
        inside = set(members)
        return tuple(
            i
            for i in sorted(inside)
            if i in self.escaping or any(user not in inside for user in self.users[i])
        )

    def is_convex(self, members: Iterable[int], *, copies: Iterable[int] = ()) -> bool:
        """Tell whether no path leaves ``members`` and comes back.

        One sweep from the first to the last member: an outside binding that reads a
        member is tainted, and so is one that reads a tainted one. Others get the value of
        ``copies`` from elsewhere: nothing leaves by them.
        """
        inside = set(members)
        given = inside.difference(copies)
        tainted: set[int] = set()
        for i in range(min(inside), max(inside) + 1):
            reads = self.deps[i]
            if i in inside:
                if any(read in tainted for read in reads):
                    return False
            elif any(read in given or read in tainted for read in reads):
                tainted.add(i)
        return True


def functions(mod: Any) -> Iterator[tuple[str, Any]]:
    """Yield the Relax functions that may be fused, by name: not the groups already made."""
    for var, function in mod.functions.items():
        if isinstance(function, relax.Function) and not (function.attrs or {}).get("Primitive"):
            yield str(var.name_hint), function


def constants(expr: Any) -> list[Any]:
    """Return the constant tensors in an expression, in the order they are read."""
    found: list[Any] = []

    def visit(part: Any) -> None:
        if isinstance(part, tvm.ir.GenericConst):
            found.append(part)

    relax.analysis.post_order_visit(expr, visit)
    return found


def _dependencies(bindings: list[Any]) -> tuple[tuple[int, ...], ...]:
    """Find which earlier bindings each one reads, by value or by symbolic size."""
    defined: dict[Any, int] = {}
    deps = []
    for position, binding in enumerate(bindings):
        read = relax.analysis.free_vars(_value(binding))
        if isinstance(binding, relax.MatchCast):
            read = [*read, *relax.analysis.tir_vars_in_type(binding.ty)]
        deps.append(tuple(sorted({defined[var] for var in read if var in defined})))
        defined[binding.var] = position
        if isinstance(binding, relax.MatchCast):
            for size in relax.analysis.definable_tir_vars_in_type(binding.ty):
                defined.setdefault(size, position)
    return tuple(deps)


def _kind(value: Any) -> OpKind:
    return "view" if isinstance(value, relax.TupleGetItem) else operators.kind(value)


def _value(binding: Any) -> Any:
    return binding.value

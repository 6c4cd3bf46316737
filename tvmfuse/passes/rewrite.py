"""Replace bindings by equal expressions until nothing changes any more.

A rule looks at one binding of a function and answers with another expression of
the same value, or None. It may nest calls freely: they are flattened afterwards.
Since every answer has the value of what it replaces, rules cannot disturb each
other, whatever the order in which they are tried.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse._tvm import relax, tvm
from tvmfuse._tvm.labels import flattened, with_label
from tvmfuse.errors import LoweringError
from tvmfuse.passes.outline import with_blocks
from tvmfuse.patterns.dataflow import Dataflow, functions

Rule = Callable[[Dataflow, int], Any]
"""Called with a function and the position of a binding; returns an expression or None."""

# Rules shrink or order a graph, so they end soon; this stops a pair that undoes each other.
_MAX_ROUNDS = 100


def rewrite(mod: Any, rules: Sequence[Rule]) -> Any:
    """Apply ``rules`` to every binding of ``mod`` until none of them has an answer.

    Parameters
    ----------
    mod : IRModule
        A normalised module.
    rules : Sequence[Rule]
        Tried in order; the first answer for a binding counts.

    Returns
    -------
    IRModule
        An equal module, tidied up.

    Raises
    ------
    LoweringError
        The rules undo each other.
    """
    for _ in range(_MAX_ROUNDS):
        changed = {
            name: replaced
            for name, function in functions(mod)
            if (replaced := _rewritten(Dataflow.of(name, function), function, rules))
        }
        if not changed:
            return mod
        mod = tidied(with_functions(mod, changed))
    names = ", ".join(rule.__name__ for rule in rules)
    raise LoweringError(
        f"rewrite: rules must come to rest within {_MAX_ROUNDS} rounds, but those of this pass "
        f"({names}) did not: two of them undo each other"
    )


def with_functions(mod: Any, changed: dict[str, Any]) -> Any:
    """Return ``mod`` with the functions in ``changed`` in place of those of the same name."""
    functions_ = {
        var: changed.get(str(var.name_hint), function) for var, function in mod.functions.items()
    }
    return tvm.IRModule(functions_, attrs=mod.attrs)


def tidied(mod: Any) -> Any:
    """Flatten nested calls, drop aliases, drop what nothing reads."""
    return tvm.transform.Sequential(
        [
            relax.transform.Normalize(),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
    )(mod)


def replaced(flow: Dataflow, function: Any, values: dict[int, Any]) -> Any:
    """Return ``function`` with the bindings at some positions bound to other values."""
    blocks: list[list[Any]] = [[] for _ in function.body.blocks]
    for position, binding in enumerate(flow.bindings):
        block = flow.block_of[position]
        if position in values:
            variable = relax.DataflowVar if block in flow.pure_blocks else relax.Var
            nested, value = flattened(values[position], flow.labels[position], variable)
            blocks[block] += nested
            binding = relax.VarBinding(binding.var, value)
        blocks[block].append(binding)
    return with_blocks(function, blocks)


def labelled(call: Any, flow: Dataflow, position: int) -> Any:
    """Return ``call`` under the name that a person knows the binding at ``position`` by."""
    return with_label(call, flow.labels[position])


def _rewritten(flow: Dataflow, function: Any, rules: Sequence[Rule]) -> Any:
    answers = {}
    for position, binding in enumerate(flow.bindings):
        if isinstance(binding, relax.MatchCast):
            continue
        for rule in rules:
            answer = rule(flow, position)
            if answer is not None:
                answers[position] = answer
                break
    return replaced(flow, function, answers) if answers else None

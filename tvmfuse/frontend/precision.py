"""Find the type that a module computes in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tvmfuse._tvm import relax
from tvmfuse.tolerance import coarsest


def precision(module: Any) -> str:
    """Return the coarsest floating type that a Relax operator of ``module`` computes at run time.

    Weights that are kept in a smaller type and widened before use do not count: each side reads
    the same ones.

    Returns
    -------
    str
        ``"float16"``, for example; "" where it computes no floats.
    """
    functions = (each for _, each in module.functions_items() if isinstance(each, relax.Function))
    return coarsest(dtype for function in functions for dtype in _computed(function.body, set()))


def _computed(body: Any, known: set[Any]) -> Iterator[str]:
    """Yield the types of what is computed; ``known`` are variables that depend on no input."""
    for binding in (binding for block in body.blocks for binding in block.bindings):
        value = binding.value
        if isinstance(value, relax.If):
            yield from _computed(value.true_branch, known)
            yield from _computed(value.false_branch, known)
        elif isinstance(value, relax.Call):
            if any(var not in known for var in _variables(value.args)):
                yield from _dtypes(value.ty)
            else:
                known.add(binding.var)


def _variables(args: Any) -> Iterator[Any]:
    for arg in args:
        if isinstance(arg, relax.Var):
            yield arg
        elif isinstance(arg, relax.Tuple):
            yield from _variables(arg.fields)


def _dtypes(ty: Any) -> Iterator[str]:
    if isinstance(ty, relax.TensorType):
        yield str(ty.dtype)
    elif isinstance(ty, relax.TupleType):
        for field in ty.fields:
            yield from _dtypes(field)

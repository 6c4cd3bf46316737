"""Kernels that a pattern writes itself, as tensor expressions."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tvmfuse._tvm import relax, te, tirx
from tvmfuse.errors import LoweringError
from tvmfuse.patterns.base import Pattern
from tvmfuse.patterns.plugins import describe
from tvmfuse.patterns.registry import Registry

Emit = Callable[..., Any]
"""Takes the operands as ``te.Tensor``, returns the results, or None for no kernel."""


def emitters(registry: Registry) -> dict[str, Emit]:
    """Return what writes kernels, by the name of the pattern; most patterns do not."""
    return {
        pattern.name: pattern.lower
        for pattern in registry.patterns
        if isinstance(pattern, Pattern) and type(pattern).lower is not Pattern.lower
    }


def emitted(emit: Emit, group: Any) -> Any:
    """Return the kernel that a pattern writes for a group; None where it writes none.

    Parameters
    ----------
    emit : callable
        Of the pattern.
    group : relax.Function
        The group; its parameters are the operands.

    Returns
    -------
    tirx.PrimFunc or None
        Operands first, then results.

    Raises
    ------
    LoweringError
        The pattern threw, or wrote something else than the group computes.
    """
    if not all(isinstance(param.ty, relax.TensorType) for param in group.params):
        return None  # a symbolic size comes in from outside
    inputs = [
        te.placeholder(list(param.ty.shape), str(param.ty.dtype), name=str(param.name))
        for param in group.params
    ]
    try:
        results = emit(*inputs)
        if results is None:
            return None
        outputs = list(results) if isinstance(results, Sequence) else [results]
        _check(outputs, group)
        return te.create_prim_func([*inputs, *outputs])
    except LoweringError:
        raise
    except Exception as error:  # code of somebody else's may raise anything
        raise LoweringError(f"its lower failed: {describe(error)}") from error


def _check(outputs: Sequence[Any], group: Any) -> None:
    """Refuse results of other shapes or types than those of the group."""
    ty = group.ret_ty
    wanted = list(ty.fields) if isinstance(ty, relax.TupleType) else [ty]
    expected, found = _listed(wanted), _listed(outputs)
    if found != expected:
        raise LoweringError(f"its lower must return {expected}, but returned {found}")


def _listed(tensors: Sequence[Any]) -> str:
    """Write shapes and types: ``float32[6, 8]``."""
    texts = []
    for tensor in tensors:
        extents = (int(d) if isinstance(d, int | tirx.IntImm) else d for d in tensor.shape)
        texts.append(f"{tensor.dtype}[{', '.join(map(str, extents))}]")
    return " and ".join(texts) or "nothing"

"""One ONNX node on its way into Relax, as a converter sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tvmfuse._tvm import relax, tirx, tvm


@dataclass(frozen=True)
class Node:
    """A node with its inputs already converted.

    Parameters
    ----------
    builder : relax.BlockBuilder
        Builds the function that the node becomes a part of.
    inputs : sequence of relax.Expr or None
        Its operands; None for an optional one that is left out.
    attrs : Mapping
        Its attributes; texts are bytes.
    n_outputs : int
        How many outputs are wanted, up to the last one with a name.
    op : str
        Its operator.
    label : str
        Its name, or that of its first output.
    convert : callable
        ``(op, inputs, attrs) -> relax.Expr``, TVM's own converters.
    """

    builder: relax.BlockBuilder
    inputs: Sequence[Any]
    attrs: Mapping[str, Any]
    n_outputs: int
    op: str
    label: str
    convert: Callable[[str, Sequence[Any], Mapping[str, Any]], relax.Expr]

    def default(self) -> relax.Expr:
        """Convert the node as TVM does by itself."""
        return self.convert(self.op, self.inputs, self.attrs)

    def input(self, index: int) -> relax.Expr | None:
        """Return an operand, or None where it is left out."""
        return self.inputs[index] if index < len(self.inputs) else None

    def array(self, index: int) -> np.ndarray[Any, Any]:
        """Return the value of a constant operand.

        Raises
        ------
        NotImplementedError
            The operand is only known at run time, or left out.
        """
        value = self.input(index)
        if value is None or not is_constant(value):
            raise NotImplementedError(f"input {index} must be a constant")
        array: np.ndarray[Any, Any] = value.value.numpy()
        return array

    def text(self, name: str, default: str) -> str:
        """Return an attribute that holds a text."""
        value = self.attrs.get(name, default)
        return value.decode() if isinstance(value, bytes) else str(value)

    def emit(self, expr: relax.Expr) -> relax.Var:
        """Bind ``expr`` to a variable of its own."""
        return self.builder.emit(expr)

    def results(self, *values: relax.Expr) -> relax.Expr:
        """Return the first ``n_outputs`` of ``values`` in the form that TVM expects."""
        return values[0] if self.n_outputs == 1 else relax.Tuple(values[: self.n_outputs])


def is_constant(value: relax.Expr | None) -> bool:
    """Tell whether ``value`` is known when compiling."""
    return isinstance(value, tvm.ir.GenericConst)


def is_tensor(value: relax.Expr | None) -> bool:
    """Tell whether ``value`` is a tensor and not a shape or a scalar expression."""
    return isinstance(value, relax.Expr) and isinstance(value.ty, relax.TensorType)


def extents(value: relax.Expr) -> tuple[int, ...] | None:
    """Return the shape of a tensor, or None where not all of it is known."""
    shape = value.ty.shape
    if not isinstance(shape, relax.ShapeExpr):
        return None
    if not all(isinstance(extent, tirx.IntImm) for extent in shape):
        return None
    return tuple(int(extent) for extent in shape)


def dtype_of(value: relax.Expr) -> str:
    """Return the element type of a tensor, spelled as NumPy spells it."""
    return str(value.ty.dtype)

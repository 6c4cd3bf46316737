"""An imported model and its signature."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tvmfuse.errors import ModelError
from tvmfuse.tolerance import coarsest

if TYPE_CHECKING:
    import tvm

Shapes = Mapping[str, tuple[int, ...]]
"""Shapes of inputs, by name."""


@dataclass(frozen=True)
class TensorSpec:
    """What a tensor that goes into or comes out of a model looks like.

    Parameters
    ----------
    name : str
        Its name in the model, verbatim: ``a.b``, ``x:0``, ``42``.
    shape : tuple of int or str
        Its extents; one that is only known at run time has a name.
    dtype : str
        Its element type, spelled as NumPy spells it.
    """

    name: str
    shape: tuple[int | str, ...]
    dtype: str

    def __str__(self) -> str:
        return f"{self.name}: {self.dtype}[{', '.join(str(extent) for extent in self.shape)}]"


@dataclass(frozen=True)
class Signature:
    """What goes into a model, what comes out, and how exactly it is computed.

    Parameters
    ----------
    inputs, outputs : tuple of TensorSpec
        Names, shapes and element types, in order.
    precision : str
        The coarsest floating type that is computed in between; "" where there is none.
    """

    inputs: tuple[TensorSpec, ...]
    outputs: tuple[TensorSpec, ...]
    precision: str = "float32"

    def to_json(self) -> dict[str, Any]:
        """Return the signature as JSON-compatible data."""
        return {
            "inputs": [_spec_to_json(spec) for spec in self.inputs],
            "outputs": [_spec_to_json(spec) for spec in self.outputs],
            "precision": self.precision,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Signature:
        """Rebuild a signature from :meth:`to_json`."""
        outputs = tuple(_spec_from_json(spec) for spec in data["outputs"])
        return cls(
            inputs=tuple(_spec_from_json(spec) for spec in data["inputs"]),
            outputs=outputs,
            # Older bundles do not say it; their outputs are the best guess.
            precision=data.get("precision", coarsest(spec.dtype for spec in outputs)),
        )


@dataclass(frozen=True)
class Model:
    """A model in Relax.

    Parameters
    ----------
    name : str
        What to call it: the file's stem or the graph's name.
    module : IRModule
        Its function ``main`` takes the inputs in the order of the signature.
        Weights are constants in it; when they were kept as parameters instead,
        they follow the inputs, and TVM's own attributes ``num_input`` and
        ``params`` hold the number of inputs and the values of the weights
        (``relax.frontend.detach_params`` takes them off). A variable is named
        after the value of the model that it holds, as an identifier.
    signature : Signature
        Its inputs and outputs as the model names them, without weights.
    """

    name: str
    module: tvm.ir.IRModule
    signature: Signature


def parse_shape(text: str) -> tuple[str, tuple[int, ...]]:
    """Read ``NAME=1,3,224,224``, as the command line gives it.

    The last ``=`` separates, since names may hold ``=`` and ``:``. Nothing
    behind it means a scalar.

    Returns
    -------
    tuple of str and tuple of int
        The input's name and its shape.

    Raises
    ------
    ModelError
        ``text`` has another form, or an extent is not a positive whole number.
    """
    name, separator, extents = text.rpartition("=")
    parts = [part.strip() for part in extents.split(",")] if extents.strip() else []
    if not separator or not name or not all(part.isdecimal() and int(part) for part in parts):
        raise ModelError(
            f"a shape is given as NAME=1,3,224,224 with positive whole numbers, "
            f"but this one is {text!r}"
        )
    return name, tuple(int(part) for part in parts)


def _spec_to_json(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "shape": list(spec.shape), "dtype": spec.dtype}


def _spec_from_json(data: Mapping[str, Any]) -> TensorSpec:
    return TensorSpec(data["name"], tuple(data["shape"]), data["dtype"])

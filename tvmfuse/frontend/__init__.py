"""Import a model: ONNX, torch.export or Relax in, a Relax module with a signature out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from os import PathLike
from typing import Any

from tvmfuse.errors import ModelError
from tvmfuse.frontend.model import Model, Signature, TensorSpec, parse_shape

__all__ = ["Model", "Signature", "TensorSpec", "import_model", "parse_shape"]


def import_model(
    source: Any, *, shapes: Mapping[str, Sequence[int]] | None = None, keep_params: bool = False
) -> Model:
    """Import a model into Relax.

    Parameters
    ----------
    source : str, PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, or the path of an ONNX file.
    shapes : Mapping of str to sequence of int, optional
        Shapes that bind the dynamic extents of inputs, by the inputs' names.
    keep_params : bool
        Whether weights stay parameters of ``main``, behind the inputs, instead
        of becoming constants.

    Returns
    -------
    Model
        The module, its signature and its name.

    Raises
    ------
    ModelError
        The model is damaged, or holds what cannot be imported; the message
        names the place and says what to do.
    """
    bound = {name: tuple(shape) for name, shape in (shapes or {}).items()}
    # The importers are loaded late: they bring TVM, ONNX or PyTorch with them.
    match _kind(source):
        case "onnx":
            from tvmfuse.frontend.onnx import import_onnx

            return import_onnx(source, bound, keep_params=keep_params)
        case "torch":
            from tvmfuse.frontend.torch import import_torch

            return import_torch(source, bound, keep_params=keep_params)
        case "relax":
            from tvmfuse.frontend.relax import import_relax

            return import_relax(source, bound, keep_params=keep_params)
    raise ModelError(
        "a model is the path of an ONNX file, an onnx.ModelProto, a torch.export.ExportedProgram "
        f"or a tvm.IRModule, but this one is a {type(source).__module__}.{type(source).__name__}"
    )


def _kind(source: object) -> str:
    """Tell what ``source`` is without importing the library that it comes from."""
    if isinstance(source, (str, PathLike)):
        return "onnx"
    for cls in type(source).__mro__:
        match cls.__module__.split("."), cls.__name__:
            case ["onnx", *_], "ModelProto":
                return "onnx"
            case ["torch", "export", *_], "ExportedProgram":
                return "torch"
            case ["tvm", *_], "IRModule":
                return "relax"
    return ""

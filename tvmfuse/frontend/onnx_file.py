"""Read an ONNX file, and the files of weights beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import onnx
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx.external_data_helper import load_external_data_for_model

from tvmfuse.errors import ModelError

_FOREIGN = {
    ".pt": "export it with torch.onnx.export",
    ".pt2": "load it with torch.export.load and hand over the program",
    ".pth": "export it with torch.onnx.export",
    ".h5": "convert it with tf2onnx",
    ".keras": "convert it with tf2onnx",
    ".pb": "convert it with tf2onnx",
    ".tflite": "convert it with tf2onnx",
    ".safetensors": "it holds weights only: export the whole model to ONNX",
}


def read(path: Path) -> onnx.ModelProto:
    """Read the model in ``path``.

    Raises
    ------
    ModelError
        The file is missing, is no ONNX file, is cut short, or refers to weights
        that are missing or lie outside its folder.
    """
    model = _parse(path, _content(path))
    for tensor in _external_tensors(model):
        _check_location(path, tensor)
    try:
        load_external_data_for_model(model, str(path.parent))
    except (OSError, ValueError, onnx.checker.ValidationError) as error:
        raise ModelError(f"{path}: its weights cannot be read: {one_line(error)}") from error
    return model


def check_complete(model: onnx.ModelProto, name: str) -> None:
    """Raise unless every weight of ``model`` is in memory.

    Raises
    ------
    ModelError
        A tensor's data is in a file, and it is not known in which folder.
    """
    for tensor in _external_tensors(model):
        raise ModelError(
            f"{name}: the data of {tensor.name!r} is in a file beside the model: "
            "give the path of the model, or load it with onnx.load"
        )


def one_line(error: BaseException) -> str:
    """Return the text of ``error`` on one line."""
    return " ".join(str(error).split()) or type(error).__name__


def _content(path: Path) -> bytes:
    if path.is_dir():
        raise ModelError(
            f"{path}: a model is one ONNX file, but this is a folder: give the file in it"
        )
    if not path.exists():
        raise ModelError(f"{path}: there is no such file: give the path of an ONNX file")
    if path.suffix.lower() in _FOREIGN:
        raise ModelError(f"{path}: this is not an ONNX file: {_FOREIGN[path.suffix.lower()]}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise ModelError(f"{path}: the file cannot be read: {error.strerror}") from error
    if not content:
        raise ModelError(f"{path}: the file is empty: export the model again")
    return content


def _parse(path: Path, content: bytes) -> onnx.ModelProto:
    model = onnx.ModelProto()
    try:
        model.ParseFromString(content)
    except DecodeError as error:
        raise ModelError(
            f"{path}: this is not an ONNX file, or it is cut short: export or fetch it again"
        ) from error
    # Almost any short text is a valid message of fields that ONNX does not know.
    if not model.ir_version and not model.HasField("graph"):
        raise ModelError(f"{path}: this is not an ONNX file: export the model to ONNX")
    return model


def _external_tensors(model: onnx.ModelProto) -> Iterator[onnx.TensorProto]:
    for tensor in tensors(model.graph):
        if tensor.data_location == onnx.TensorProto.EXTERNAL:
            yield tensor


def tensors(graph: onnx.GraphProto) -> Iterator[onnx.TensorProto]:
    """Return every constant in ``graph`` and in its nodes' attributes and subgraphs."""
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.HasField("t"):
                yield attribute.t
            yield from attribute.tensors
            for subgraph in (attribute.g, *attribute.graphs):
                yield from tensors(subgraph)


def _check_location(path: Path, tensor: onnx.TensorProto) -> None:
    """Raise unless the data of ``tensor`` is in a file inside the model's folder."""
    location = {entry.key: entry.value for entry in tensor.external_data}.get("location", "")
    folder = path.parent.resolve()
    target = (folder / location).resolve()
    if Path(location).is_absolute() or not target.is_relative_to(folder) or target == folder:
        raise ModelError(
            f"{path}: the data of {tensor.name!r} must be in the model's folder, "
            f"but it is said to be in {location!r}"
        )
    if not target.is_file():
        raise ModelError(f"{path}: the data of {tensor.name!r} is missing: no file {target}")

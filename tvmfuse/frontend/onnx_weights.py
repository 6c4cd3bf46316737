"""Take large weights out of an ONNX model while its graph is worked on.

ONNX's libraries copy the whole model at every call, seconds for each hundred
megabytes, and refuse more than 2 GiB. Without its large weights a model is
small; what the libraries need to see of one is its name, shape and type.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import onnx
from onnx import numpy_helper

from tvmfuse.errors import ModelError
from tvmfuse.frontend.onnx_file import one_line

_LARGE = 1024
"""Elements; constants that shapes are computed from are far smaller."""

Weights = Mapping[str, onnx.TensorProto]


def check_data(tensor: onnx.TensorProto, name: str) -> None:
    """Raise unless ``tensor`` holds as much data as its shape asks for.

    Raises
    ------
    ModelError
        An extent is negative, or the data is too short or too long.
    """
    if any(extent < 0 for extent in tensor.dims):
        raise ModelError(
            f"{name}: the constant {tensor.name!r} has a negative extent: {list(tensor.dims)}"
        )
    try:
        numpy_helper.to_array(tensor)
    except (ValueError, TypeError) as error:
        raise ModelError(
            f"{name}: the data of the constant {tensor.name!r} does not fit its shape "
            f"{list(tensor.dims)}: {one_line(error)}"
        ) from error


def detach_weights(graph: onnx.GraphProto) -> Weights:
    """Replace the large constants of ``graph`` by inputs, and return them by name."""
    small: list[onnx.TensorProto] = []
    large: list[onnx.TensorProto] = []
    for tensor in graph.initializer:
        (large if math.prod(tensor.dims) > _LARGE else small).append(tensor)
    del graph.initializer[:]
    graph.initializer.extend(small)
    graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, list(tensor.dims))
        for tensor in large
    )
    return {tensor.name: tensor for tensor in large}


def attach_weights(graph: onnx.GraphProto, weights: Weights) -> None:
    """Undo :func:`detach_weights`."""
    inputs = [value for value in graph.input if value.name not in weights]
    del graph.input[:]
    graph.input.extend(inputs)
    graph.initializer.extend(weights.values())

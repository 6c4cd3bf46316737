"""Import a program of torch.export."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm.torch import import_program
from tvmfuse.errors import ModelError
from tvmfuse.frontend.model import Model, Shapes
from tvmfuse.frontend.relax import bind_extents, read_signature


def import_torch(program: Any, shapes: Shapes, *, keep_params: bool) -> Model:
    """Import a ``torch.export`` program; see :func:`tvmfuse.frontend.import_model`."""
    label = "the exported program"
    inputs = [name for name in program.graph_signature.user_inputs if isinstance(name, str)]
    outputs = list(program.graph_signature.user_outputs)
    if not outputs or not all(isinstance(name, str) for name in outputs):
        raise ModelError(f"{label}: it must return tensors only, but it returns {outputs}")
    module = import_program(program, keep_params=keep_params)
    module = bind_extents(module, shapes, inputs, label)
    return Model("program", module, read_signature(module, inputs, outputs, label))

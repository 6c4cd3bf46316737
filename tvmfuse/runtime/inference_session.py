"""Stand in for ONNX Runtime's ``InferenceSession``."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse import targets
from tvmfuse.compiled import Compiled
from tvmfuse.frontend import TensorSpec, import_model
from tvmfuse.runtime.session import Session, load

_ONNX_NAMES = {"float32": "float", "float64": "double"}


@dataclass(frozen=True)
class NodeArg:
    """One input or output, as ONNX Runtime describes it.

    Parameters
    ----------
    name : str
        Its name in the ONNX file.
    shape : list of int or str
        Its extents; one that is only known at run time has a name.
    type : str
        For example ``tensor(float)`` or ``tensor(int64)``.
    """

    name: str
    shape: list[int | str]
    type: str


class InferenceSession:
    """A compiled model behind the calls that programs make of ONNX Runtime.

    Parameters
    ----------
    path : str or path
        A bundle's directory; or an ONNX file, which is then compiled for this
        machine's CPU, each time anew.
    sess_options, providers : optional
        Accepted so that a call need not change; without effect. The target was
        chosen when compiling, and ``TVM_NUM_THREADS`` sets the threads.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        sess_options: object = None,
        providers: object = None,
    ) -> None:
        self._session = load(path) if Path(path).is_dir() else Session.of(_compile(path))

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, Any],
        run_options: object = None,
    ) -> list[np.ndarray[Any, Any]]:
        """Return the outputs named, or all; see :meth:`Session.run`."""
        return self._session.run(output_names, input_feed)

    def get_inputs(self) -> list[NodeArg]:
        """Describe the inputs."""
        return [_node_arg(spec) for spec in self._session.inputs]

    def get_outputs(self) -> list[NodeArg]:
        """Describe the outputs."""
        return [_node_arg(spec) for spec in self._session.outputs]


def _compile(path: str | os.PathLike[str]) -> Compiled:
    from tvmfuse import _pipeline

    return _pipeline.build(import_model(path), targets.resolve("cpu"))


def _node_arg(spec: TensorSpec) -> NodeArg:
    dtype = _ONNX_NAMES.get(spec.dtype, spec.dtype)
    return NodeArg(spec.name, list(spec.shape), f"tensor({dtype})")

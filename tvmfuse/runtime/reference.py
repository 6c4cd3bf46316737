"""What ONNX Runtime computes, to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse.errors import EnvironmentMismatchError, InputError

Arrays = Mapping[str, np.ndarray[Any, Any]]


def run_onnxruntime(model: Path, names: Sequence[str], feeds: Arrays, *, who: str) -> Arrays:
    """Run a model by ONNX Runtime on the CPU.

    Parameters
    ----------
    model : Path
        An ONNX file.
    names : sequence of str
        Its outputs.
    feeds : Mapping of str to ndarray
        Its inputs.
    who : str
        The command that asks, for messages.

    Raises
    ------
    EnvironmentMismatchError
        ONNX Runtime is not installed.
    InputError
        It cannot run the model, or the model has other inputs or outputs.
    """
    try:
        import onnxruntime
        from onnxruntime.capi import onnxruntime_pybind11_state as state
    except ImportError:
        raise EnvironmentMismatchError(
            f"{who}: ONNX Runtime is needed to compare with, but it is not installed: "
            "pip install onnxruntime"
        ) from None
    failures = tuple(each for each in vars(state).values() if _is_exception(each))
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # what fails is raised as well
    # Without it, int8 products saturate in 16 bits on x86 processors without VNNI.
    options.add_session_config_entry("session.x64quantprecision", "1")
    try:
        session = onnxruntime.InferenceSession(
            str(model), options, providers=["CPUExecutionProvider"]
        )
        _check_names(model, names, feeds, session, who=who)
        return dict(zip(names, session.run(list(names), dict(feeds)), strict=True))
    except failures as error:
        reason = " ".join(str(error).split())
        raise InputError(f"{who}: ONNX Runtime cannot run {model}: {reason[:300]}") from error


def _check_names(
    model: Path, names: Sequence[str], feeds: Arrays, session: Any, *, who: str
) -> None:
    """Refuse a model that is not the one that the names are of."""
    inputs = {value.name: value for value in session.get_inputs()}
    outputs = [value.name for value in session.get_outputs()]
    for kind, found, wanted in (("inputs", list(inputs), list(feeds)), ("outputs", outputs, names)):
        if not set(wanted) <= set(found):
            raise InputError(
                f"{who}: {model} must be the model that the bundle was made of, with the {kind} "
                f"{', '.join(wanted)}, but has {', '.join(found)}: give the right file"
            )
    for name, array in feeds.items():
        shape = inputs[name].shape
        fits = len(shape) == array.ndim and all(
            not isinstance(extent, int) or extent == given
            for extent, given in zip(shape, array.shape, strict=False)
        )
        if not fits:
            raise InputError(
                f"{who}: {model} must be the model that the bundle was made of, whose input {name} "
                f"is {list(array.shape)}, but there it is {shape}: give the right file"
            )


def _is_exception(value: object) -> bool:
    return isinstance(value, type) and issubclass(value, Exception)

"""The calls that most users need."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tvmfuse import _pipeline, targets
from tvmfuse.calibrate import calibrated
from tvmfuse.compiled import Compiled
from tvmfuse.frontend import import_model
from tvmfuse.targets import Target


def compile_source(
    source: Any,
    target: str | Target = "cpu",
    *,
    shapes: Mapping[str, Sequence[int]] | None = None,
    fuse: bool = True,
    progress: Callable[[str], None] | None = None,
) -> Compiled:
    """Compile a model.

    Parameters
    ----------
    source : str, PathLike, onnx.ModelProto, torch.export.ExportedProgram or tvm.IRModule
        The model, or the path of an ONNX file.
    target : str or Target
        The device: ``cpu``, ``cpu:x86-64-v3``, ``cuda:sm_80``, ``metal:m1``.
    shapes : Mapping of str to sequence of int, optional
        Shapes that bind the dynamic extents of inputs, by the inputs' names.
    fuse : bool
        Whether to fuse; without, every operator is a kernel of its own.
    progress : callable, optional
        Is called with the name of each stage as it begins.

    Returns
    -------
    Compiled
        Give it to :func:`tvmfuse.save`, or to :meth:`tvmfuse.Session.of` to run it here.

    Raises
    ------
    ModelError
        The model is damaged, or holds what cannot be imported.
    TargetError
        The target is unknown.
    """
    device = calibrated(targets.resolve(target)) if isinstance(target, str) else target
    model = import_model(source, shapes=shapes)
    return _pipeline.build(model, device, options=_pipeline.Options(fuse=fuse), progress=progress)

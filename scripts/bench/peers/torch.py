"""torch.compile (Inductor).

The exported networks are built anew in torch from the same seed, as its users have
them; other ONNX files come through onnx2torch. A file may say which function of
``torch.nn.functional`` it is, which then is called without being compiled.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import torch
from torch import nn

sys.path.append(str(Path(__file__).parents[1]))
import networks

Array = np.ndarray[Any, Any]

EAGER = "eager"  # a function that PyTorch has a kernel for, called as its users call it


def load(
    model: str, feeds: Mapping[str, Array], threads: int
) -> tuple[Callable[[], list[Array]], str]:
    """Compile an ONNX file; see ``tvmfuse/runtime/worker.py``."""
    path = Path(model)
    # Compiled code stays beside the model for the next process; it depends on the threads.
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(path.parent / f"inductor-{threads}")
    torch.set_num_threads(threads)
    if torch.get_num_interop_threads() != 1:  # may be set once only
        torch.set_num_interop_threads(1)
    torch._inductor.config.freezing = True  # weights are constants, as for every other side
    module, origin = build(path)
    torch._dynamo.reset()  # it would take the next model for the same function again
    compiled = module if origin == EAGER else torch.compile(module.eval())
    inputs = [torch.from_numpy(array) for array in feeds.values()]

    def call() -> list[Array]:
        with torch.no_grad():
            outputs = compiled(*inputs)
        several = outputs if isinstance(outputs, (list, tuple)) else [outputs]
        return [output.numpy() for output in several]

    call()  # compiles
    return call, f"torch {torch.__version__.partition('+')[0]}, {origin}"


def eager_name(path: Path) -> str | None:
    """Return the function of ``torch.nn.functional`` that a file says it is, if any."""
    said = {prop.key: prop.value for prop in onnx.load(path).metadata_props}
    return said.get("torch.eager")


def build(path: Path) -> tuple[Callable[..., Any], str]:
    """Return the network in torch, and where it comes from."""
    if (named := eager_name(path)) is not None:
        return getattr(nn.functional, named), EAGER
    name = path.stem.removesuffix("_bn")
    if name in networks.BUILDERS:
        return networks.build(name).module, "built in torch"
    networks.import_torchvision()  # onnx2torch imports it
    import onnx2torch

    return onnx2torch.convert(str(path)), "through onnx2torch"

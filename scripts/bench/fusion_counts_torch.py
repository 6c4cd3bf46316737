"""Print how many kernels torch.compile makes of an ONNX model.

Runs in the environment of the peer ``torch``, as ``fusion_counts_torch.py MODEL INPUTS.npz``.
Counted are the calls in the function that Inductor writes: of kernels that it generates, and
of kernels of oneDNN and ATen. None of them is compiled.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from unittest import mock

import numpy as np
import torch
from torch._inductor import config
from torch._inductor.graph import GraphLowering

# A call of a kernel in the function that Inductor writes: its own, oneDNN's or ATen's.
_KERNEL = re.compile(
    r"^\s*(?:\w+ = )?(?:cpp_\w+|extern_kernels\.\w+|torch\.ops\.(?:mkldnn|aten|onednn)\.[\w.]+)\(",
    re.MULTILINE,
)


class WrittenError(Exception):
    """The code of a network is there, and nobody wants it compiled."""


def count(code: str) -> int:
    """Count the kernels that are called in what Inductor wrote."""
    return len(_KERNEL.findall(code[code.rfind("def call(") :]))


def written(network: torch.nn.Module, inputs: list[torch.Tensor]) -> str:
    """Return what Inductor writes for a network as one graph.

    Raises
    ------
    RuntimeError
        It wrote nothing.
    """
    config.freezing = True  # weights are constants, as for every other side
    config.force_disable_caches = True  # what comes from a cache is not written anew
    codes: list[str] = []

    def save(code: str) -> None:
        codes.append(code)
        raise WrittenError

    compiled = torch.compile(network.eval(), fullgraph=True)
    with torch.no_grad(), mock.patch.object(GraphLowering, "save_output_code", save):
        try:
            compiled(*inputs)
        except Exception:
            if not codes:
                raise
    if not codes:
        raise RuntimeError("Inductor wrote no code")
    return codes[0]


def main(model: str, inputs: str) -> None:
    """Give a model inputs of the shapes in a file, and print the count."""
    path = Path(__file__).parent / "peers" / "torch.py"  # its name is the library's
    spec = importlib.util.spec_from_file_location("torch_peer", path)
    assert spec
    assert spec.loader
    peer = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(peer)
    network, _ = peer.build(Path(model))
    with np.load(inputs) as feeds:
        print(count(written(network, [torch.from_numpy(feeds[name]) for name in feeds.files])))


if __name__ == "__main__":
    main(*sys.argv[1:])

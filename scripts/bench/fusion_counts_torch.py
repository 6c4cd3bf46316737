"""Print how many kernels torch.compile makes of a network, generated ones and library calls."""

from __future__ import annotations

import re
import sys

import networks
import torch
from torch._inductor import config
from torch._inductor.utils import run_and_get_code

# A call of a kernel in the function that Inductor writes: its own, oneDNN's or ATen's.
_KERNEL = re.compile(
    r"^\s*(?:\w+ = )?(?:cpp_\w+|extern_kernels\.\w+|torch\.ops\.(?:mkldnn|aten|onednn)\.[\w.]+)\(",
    re.MULTILINE,
)


def count(name: str) -> int:
    """Compile a network that scripts/bench builds in torch, and count the calls."""
    config.freezing = True  # weights are constants, as for every other side
    config.force_disable_caches = True  # what comes from a cache is not written anew
    network = networks.build(name.removesuffix("_bn"))
    compiled = torch.compile(network.module.eval())
    with torch.no_grad():
        _, codes = run_and_get_code(compiled, *network.inputs)
    return sum(len(_KERNEL.findall(code[code.rfind("def call(") :])) for code in codes)


if __name__ == "__main__":
    print(count(sys.argv[1]))

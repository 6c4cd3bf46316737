"""What CUDA's assembler says of kernels, without a GPU: registers, spills, shared memory."""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tvmfuse.cost.features import Resources
from tvmfuse.errors import CostModelError

_ENTRY = re.compile(r"Compiling entry function '(\w+)'")
_SPILLS = re.compile(r"(\d+) bytes spill stores")
_USED = re.compile(r"Used (\d+) registers")
_SHARED = re.compile(r"(\d+) bytes smem")


def resources(source: str, arch: str) -> Mapping[str, Resources]:
    """Assemble CUDA source and return what each kernel in it needs, by name.

    Parameters
    ----------
    source : str
        CUDA C++, as TVM writes it.
    arch : str
        The architecture: ``sm_80``.

    Raises
    ------
    CostModelError
        nvcc is missing, or refuses the source.
    """
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise CostModelError(
            "cost model: the registers of a CUDA kernel need nvcc, which is not there"
        )
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernels.cu"
        file.write_text(source, encoding="utf-8")
        # As tvmfuse compiles, not as TVM would: other options give other registers.
        options = ["-cubin", f"-arch={arch}", "-O3", "-Xptxas", "-v"]
        command = [nvcc, *options, "-o", str(file.with_suffix(".cubin")), str(file)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        why = (done.stderr.strip().splitlines() or ["it says nothing"])[0]
        raise CostModelError(f"cost model: nvcc refuses the kernels for {arch}: {why}")
    return parsed(done.stderr)


def parsed(text: str) -> Mapping[str, Resources]:
    """Read what ``ptxas -v`` printed."""
    found: dict[str, Resources] = {}
    name, spill_bytes = "", 0
    for line in text.splitlines():
        if entry := _ENTRY.search(line):
            name, spill_bytes = entry[1], 0
        elif spills := _SPILLS.search(line):
            spill_bytes = int(spills[1])
        elif (used := _USED.search(line)) and name:
            shared = _SHARED.search(line)
            found[name] = Resources(int(used[1]), spill_bytes, int(shared[1]) if shared else 0)
    return found

import shutil

import pytest

from tvmfuse.cost import assembler
from tvmfuse.cost.features import Resources
from tvmfuse.errors import CostModelError

SOURCE = """
extern "C" __global__ void twice(const float* x, float* y) {
  __shared__ float tile[256];
  tile[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  y[threadIdx.x] = 2 * tile[255 - threadIdx.x];
}
"""


def test_report_of_the_assembler_is_read():
    text = """
ptxas info    : Compiling entry function 'a' for 'sm_80'
    16 bytes stack frame, 12 bytes spill stores, 12 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 6912 bytes smem, 376 bytes cmem[0]
ptxas info    : Compiling entry function 'b' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 21 registers, 376 bytes cmem[0]
"""
    assert assembler.parsed(text) == {"a": Resources(255, 12, 6912), "b": Resources(21, 0, 0)}


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_kernel_is_assembled_without_a_gpu():
    found = assembler.resources(SOURCE, "sm_80")["twice"]
    assert found.registers > 0
    assert (found.spill_bytes, found.shared_bytes) == (0, 1024)
    with pytest.raises(CostModelError, match="nvcc refuses"):
        assembler.resources("no kernel", "sm_80")


def test_missing_assembler_is_named(monkeypatch):
    monkeypatch.setenv("PATH", "")
    with pytest.raises(CostModelError, match="nvcc"):
        assembler.resources(SOURCE, "sm_80")

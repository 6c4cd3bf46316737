import re
import struct
from pathlib import Path

import pytest

from tvmfuse.errors import EnvironmentMismatchError, LoweringError, TargetError
from tvmfuse.targets import cuda_toolkit
from tvmfuse.targets.cuda_compilers import Nvrtc
from tvmfuse.targets.cuda_toolkit import Compiler, find_compiler

# As TVM 0.27 writes it: a choice of headers, then the kernels.
SOURCE = """
#ifdef __CUDACC_RTC__
  #include <cuda/std/cstdint>
  #ifndef __asm__
  #define __asm__ asm
  #endif
#else
  #include <cstdint>
  #include <cuda.h>
#endif
extern "C" __global__ void __launch_bounds__(32) copy_kernel(float* a, float* b);
extern "C" __global__ void __launch_bounds__(32) copy_kernel(float* a, float* b) {
  int64_t i = (int64_t)threadIdx.x;
  a[i] = b[i];
}
extern "C" __global__ void __launch_bounds__(32) half_kernel(float* a) { a[0] = STATEMENT; }
"""


@pytest.fixture(scope="module")
def compiler() -> Compiler:
    try:
        return find_compiler()
    except EnvironmentMismatchError as error:
        pytest.skip(str(error))


def test_a_compiler_names_its_version_and_where_it_is(compiler: Compiler) -> None:
    assert re.match(r"(NVRTC|nvcc) \d+\.\d+[.\d]*, /", compiler.about())


@pytest.mark.parametrize(("arch", "sm"), [("sm_75", 75), ("sm_80", 80), ("sm_120", 120)])
def test_output_is_machine_code_of_the_architecture(compiler: Compiler, arch: str, sm: int) -> None:
    cubin = compiler(SOURCE.replace("STATEMENT", "1.0f"), arch)
    machine, flags = struct.unpack_from("<18xH28xI", cubin)
    assert cubin[:4] == b"\x7fELF"
    assert machine == 190  # EM_CUDA
    assert flags >> 8 & 0xFF == sm
    assert b".text.copy_kernel" in cubin


def test_half_precision_headers_are_found(compiler: Compiler) -> None:
    source = "#include <cuda_fp16.h>\n#include <mma.h>\n" + SOURCE
    cubin = compiler(source.replace("STATEMENT", "__half2float(__float2half_rn(a[0]))"), "sm_80")
    assert b".text.half_kernel" in cubin


def test_refused_text_is_an_error_of_one_line_that_names_the_kernel(compiler: Compiler) -> None:
    with pytest.raises(LoweringError, match=r"kernel half_kernel for sm_80: .*nonsense") as caught:
        compiler(SOURCE.replace("STATEMENT", "nonsense"), "sm_80")
    assert "\n" not in str(caught.value)


def test_unknown_architecture_is_a_target_error(compiler: Compiler) -> None:
    with pytest.raises(TargetError, match="cannot compile for sm_70"):
        compiler(SOURCE.replace("STATEMENT", "1.0f"), "sm_70")


def test_without_any_compiler_the_error_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(cuda_toolkit, "toolkits", lambda: ())
    monkeypatch.setenv("PATH", "")
    with pytest.raises(EnvironmentMismatchError, match=r"pip install 'tvmfuse\[cuda\]'"):
        find_compiler()


def test_broken_library_is_an_environment_error(tmp_path: Path) -> None:
    library = tmp_path / "libnvrtc.so.13"
    library.write_bytes(b"no library")
    with pytest.raises(EnvironmentMismatchError, match="cannot load"):
        Nvrtc(library, headers=tmp_path)("", "sm_80")

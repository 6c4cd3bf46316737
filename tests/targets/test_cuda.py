import subprocess
import sys

import pytest

from tvmfuse.errors import TargetError
from tvmfuse.targets import cuda, resolve


def test_target_names_architecture_and_limits() -> None:
    target = resolve("cuda:sm_80")
    assert target.spec == "cuda:sm_80"
    assert (target.kind, target.rules) == ("cuda", "dlight")
    tvm_target = target.tvm()
    assert tvm_target.kind.name == "cuda"
    assert tvm_target.attrs["arch"] == "sm_80"
    assert tvm_target.attrs["max_threads_per_block"] == 1024
    assert tvm_target.attrs["max_shared_memory_per_block"] == 49152
    assert tvm_target.host.kind.name == "llvm"


@pytest.mark.parametrize(
    "arch", ["sm_75", "sm_80", "sm_86", "sm_87", "sm_89", "sm_90", "sm_90a", "sm_100", "sm_120"]
)
def test_peaks_of_every_architecture_are_those_of_a_real_device(arch: str) -> None:
    peaks = cuda.target(arch).peaks
    assert peaks.source == "default"
    assert 1_000 < peaks.gflops < 200_000
    assert 100 < peaks.bandwidth_gbps["dram"] < peaks.bandwidth_gbps["l2"]
    # A kernel that is bound by memory must look so: flops per byte are above 10.
    assert peaks.gflops / peaks.bandwidth_gbps["dram"] > 9


@pytest.mark.parametrize("arch", ["sm_70", "sm_80a", "80", "sm_", "hopper"])
def test_unknown_architecture_is_an_error_that_lists_the_known(arch: str) -> None:
    with pytest.raises(TargetError, match=r"needs one of sm_75, sm_80"):
        cuda.target(arch)


@pytest.mark.parametrize(
    ("arch", "device", "fits"),
    [
        ("sm_80", (8, 0), True),
        ("sm_80", (8, 6), True),
        ("sm_86", (8, 0), False),
        ("sm_80", (9, 0), False),
        ("sm_90a", (9, 0), True),
        ("sm_100a", (10, 3), False),
        ("sm_100", (10, 3), True),
        ("sm_80", None, False),
    ],
)
def test_machine_code_runs_within_its_major_version(
    *, arch: str, device: tuple[int, int] | None, fits: bool
) -> None:
    assert cuda._fits(arch, device) is fits


@pytest.mark.parametrize("module", ["cuda", "metal", "export", "cuda_toolkit"])
def test_import_does_not_import_tvm(module: str) -> None:
    code = f"import sys, tvmfuse.targets.{module}; sys.exit('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""CPU targets: what LLVM is told, on this machine and on others."""

import subprocess
import sys

import numpy as np
import pytest

from tvmfuse._tvm import te, tvm
from tvmfuse.errors import TargetError
from tvmfuse.host import Host, detect
from tvmfuse.targets import Target, cpu, resolve
from tvmfuse.targets.registry import from_tvm


def doubling_kernel():
    a = te.placeholder((1024,), name="a")
    return te.create_prim_func([a, te.compute((1024,), lambda i: a[i] * 2.0 + 1.0, name="b")])


def assembly(target: Target) -> str:
    text: str = tvm.compile(doubling_kernel(), target.tvm()).mod.inspect_source("asm")
    return text


def test_code_for_this_cpu_runs_here():
    target = resolve("cpu")
    assert target.runs_here
    kernel = tvm.compile(doubling_kernel(), target.tvm())
    x = np.arange(1024, dtype="float32")
    a, b = tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros_like(x))
    kernel["main"](a, b)
    np.testing.assert_array_equal(b.numpy(), x * 2 + 1)


def test_cores_are_told_to_tvm():
    assert resolve("cpu").attrs["num-cores"] == resolve("cpu").peaks.cores == detect().cores


@pytest.mark.parametrize(
    ("name", "vector_bytes", "vector_registers", "register"),
    [
        ("x86-64-v2", 16, 16, "xmm"),
        ("x86-64-v3", 32, 16, "ymm"),
        ("znver3", 32, 16, "ymm"),
        ("x86-64-v4", 64, 32, "zmm"),
        ("sapphirerapids", 64, 32, "zmm"),
        ("aarch64", 16, 32, ".4s"),
        ("neoverse-n1", 16, 32, ".4s"),
        ("apple-m1", 16, 32, ".4s"),
    ],
)
def test_code_uses_the_vectors_that_the_target_states(
    name, vector_bytes, vector_registers, register
):
    target = resolve(f"cpu:{name}")
    assert (target.vector_bytes, target.vector_registers) == (vector_bytes, vector_registers)
    assert target.lanes == vector_bytes // 4
    assert register in assembly(target)


def test_extension_hidden_by_the_system_is_not_used():
    """A virtual machine may hide AVX-512 of a model that has it."""
    host = detect()
    if host.arch != "x86_64" or "avx512f" not in host.flags:
        pytest.skip("needs an x86-64 CPU with AVX-512")
    hidden = Host(
        host.arch, host.system, 2, flags=frozenset(f for f in host.flags if "avx512" not in f)
    )
    target = cpu.target(host=hidden)
    assert target.vector_bytes == 32
    assert target.runs_here
    assert "zmm" not in assembly(target)
    assert not cpu.target("x86-64-v4", host=hidden).runs_here


def test_code_for_a_foreign_cpu_does_not_run_here():
    host = Host("aarch64", "linux", cores=64)
    assert not cpu.target("x86-64-v3", host=host).runs_here


def test_foreign_cpu_does_not_get_this_machines_cores_and_caches():
    host = Host("aarch64", "linux", cores=64, cache_bytes={"l1": 1, "l2": 1, "l3": 1})
    target = cpu.target("znver3", host=host)
    assert target.attrs["num-cores"] < 64
    assert target.peaks.cache_bytes["l1"] > 1


def test_default_peak_is_two_fused_multiply_adds_a_cycle():
    host = Host("x86_64", "linux", cores=4, ghz=3.0)
    assert cpu.default_peaks(host, vector_bytes=32).gflops == pytest.approx(4 * 3.0 * 8 * 2 * 2)


def test_default_bandwidth_falls_with_distance():
    peaks = resolve("cpu").peaks
    rates = [peaks.bandwidth_gbps[level] for level in ("l1", "l2", "l3", "dram")]
    assert rates == sorted(rates, reverse=True)
    assert peaks.source == "default"


def test_every_spec_resolves_to_itself():
    for spec in ("cpu", "cpu:x86-64-v3", "cpu:x86-64-v4", "cpu:aarch64", "cpu:znver3"):
        assert resolve(spec).spec == spec


def test_auto_is_this_cpu():
    assert resolve("auto") == resolve("cpu")


@pytest.mark.parametrize("spec", ["", "gpu", "cpu:", "cpu:pentium-9", "cuda", "metal", "CPU"])
def test_unknown_target_is_refused_with_what_is_possible(spec):
    with pytest.raises(TargetError, match="cpu:x86-64-v3") as error:
        resolve(spec)
    assert "\n" not in str(error.value)


def test_target_of_a_flow_that_begins_in_tvm_keeps_its_attributes():
    given = tvm.target.Target({"kind": "llvm", "mcpu": "x86-64-v3", "num-cores": 3})
    target = from_tvm(given)
    assert (target.vector_bytes, target.attrs["num-cores"]) == (32, 3)
    assert str(target.tvm()) == str(given)


def test_tvm_target_of_ours_comes_back_the_same():
    ours = resolve("cpu")
    back = from_tvm(ours.tvm())
    assert str(back.tvm()) == str(ours.tvm())
    assert (back.vector_bytes, back.runs_here) == (ours.vector_bytes, ours.runs_here)


def test_no_tvm_target_is_this_cpu():
    assert from_tvm(None) == resolve("cpu")


def test_gpu_targets_of_tvm_are_found():
    assert from_tvm(tvm.target.Target("nvidia/nvidia-a100", host="llvm")).spec == "cuda:sm_80"
    assert from_tvm(tvm.target.Target("apple/m1-gpu")).spec == "metal:m1"


def test_tvm_target_of_another_kind_is_refused():
    with pytest.raises(TargetError, match="but got 'c'"):
        from_tvm(tvm.target.Target("c"))


def test_importing_targets_needs_no_tvm():
    code = "import sys, tvmfuse.targets; sys.exit('tvm' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

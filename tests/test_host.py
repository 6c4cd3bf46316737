"""What is read of a machine, from folders that look like its /proc and /sys."""

import os
from pathlib import Path

import pytest

from tvmfuse import host

CPU_FOLDER = "sys/devices/system/cpu"


def write(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text + "\n")
    return root


def topology(*siblings: str) -> dict[str, str]:
    return {
        f"{CPU_FOLDER}/cpu{i}/topology/thread_siblings_list": text
        for i, text in enumerate(siblings)
    }


@pytest.fixture(autouse=True)
def fresh():
    host._affinity.cache_clear()
    yield
    host._affinity.cache_clear()


@pytest.fixture
def four_cpus(monkeypatch):
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3}, raising=False)


@pytest.mark.usefixtures("four_cpus")
def test_hyper_threads_of_one_core_count_once(tmp_path):
    assert host.detect(write(tmp_path, topology("0,2", "1,3", "0,2", "1,3"))).cores == 2


@pytest.mark.usefixtures("four_cpus")
def test_only_cores_in_the_affinity_mask_count(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    assert host.detect(write(tmp_path, topology("0", "1", "2", "3"))).cores == 1


@pytest.mark.usefixtures("four_cpus")
def test_the_machine_stays_the_same_when_tvm_pins_its_threads(tmp_path, monkeypatch):
    write(tmp_path, topology("0", "1", "2", "3"))
    before = host.detect(tmp_path)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
    assert host.detect(tmp_path) == before


@pytest.mark.usefixtures("four_cpus")
@pytest.mark.parametrize(
    ("files", "cores"),
    [
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "200000 100000"}, 2),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "max 100000"}, 4),
        ({"proc/self/cgroup": "0::/", "sys/fs/cgroup/cpu.max": "50000 100000"}, 1),
        ({"proc/self/cgroup": "0::/a/b", "sys/fs/cgroup/a/cpu.max": "300000 100000"}, 3),
        (
            {
                "proc/self/cgroup": "4:cpu,cpuacct:/job\n3:memory:/job",
                "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "150000",
                "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000",
            },
            1,
        ),
        (
            {
                "proc/self/cgroup": "4:cpu:/",
                "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1",
                "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000",
            },
            4,
        ),
    ],
)
def test_cgroup_quota_limits_the_cores(tmp_path, files, cores):
    write(tmp_path, topology("0", "1", "2", "3") | files)
    assert host.detect(tmp_path).cores == cores


def test_data_caches_are_read_and_instruction_caches_are_not(tmp_path):
    caches = [("1", "Data", "48K"), ("1", "Instruction", "64K"), ("2", "Unified", "2048K")]
    for i, (level, kind, size) in enumerate(caches):
        folder = f"{CPU_FOLDER}/cpu0/cache/index{i}"
        write(tmp_path, {f"{folder}/level": level, f"{folder}/type": kind, f"{folder}/size": size})
    found = host.detect(tmp_path).cache_bytes
    assert (found["l1"], found["l2"]) == (48 << 10, 2 << 20)


def test_bare_machine_gets_defaults(tmp_path):
    bare = host.detect(tmp_path)
    assert bare.cores >= 1
    assert bare.ghz > 0
    assert bare.flags == frozenset()
    assert set(bare.cache_bytes) >= {"l1", "l2", "l3"}


@pytest.mark.parametrize("text", ["flags\t\t: fma avx2", "Features\t: fma avx2"])
def test_flags_are_read_for_x86_and_arm(tmp_path, text):
    write(tmp_path, {"proc/cpuinfo": f"processor\t: 0\n{text}\n"})
    assert host.detect(tmp_path).flags == {"fma", "avx2"}


@pytest.mark.parametrize(
    ("arch", "system", "triple"),
    [
        ("x86_64", "linux", "x86_64-unknown-linux-gnu"),
        ("aarch64", "linux", "aarch64-unknown-linux-gnu"),
        ("aarch64", "darwin", "arm64-apple-macos"),
        ("x86_64", "win32", "x86_64-pc-windows-msvc"),
    ],
)
def test_triple_names_processor_and_system(arch, system, triple):
    machine = host.Host(arch, system, cores=1)
    assert machine.triple == triple
    assert machine.is_named_by(triple)


def test_vendor_in_a_triple_does_not_matter_but_the_system_does():
    machine = host.Host("x86_64", "linux", cores=1)
    assert machine.is_named_by("x86_64-conda-linux-gnu")
    assert not machine.is_named_by("x86_64-pc-windows-msvc")
    assert not machine.is_named_by("aarch64-unknown-linux-gnu")

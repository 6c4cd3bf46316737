"""A kernel is found by what it computes, on its device, whatever its key is called."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.store.conftest import CPU, LLVM, OTHER_CPU, ok
from tests.store.kernels import scale_shift
from tvmfuse import targets
from tvmfuse._tvm import te, threads
from tvmfuse.plan import Tuned
from tvmfuse.store import Store, Versions, Workload, exchange, keys, open_store
from tvmfuse.store.devices import device_of
from tvmfuse.store.kernels import KernelRecords
from tvmfuse.store.packs import load_pack, write_pack

KERNEL = scale_shift()
RENAMED = scale_shift(names="XYZ", indices=("p", "q"))


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "tvmfuse.db") as store:
        yield store


@pytest.fixture
def key(store: Store) -> str:
    return store.add_workload(keys.workload(KERNEL), keys.is_same_module)


def collide(store: Store) -> str:
    """Add another kernel under the key of ours, then ours, and return its key."""
    other = keys.workload(scale_shift(rows=32))
    store.add_workload(Workload(keys.workload_key(KERNEL), other.module, other.tvm_version))
    return store.add_workload(keys.workload(KERNEL), keys.is_same_module)


def test_decisions_of_another_version_or_family_are_not_used(store: Store, key: str) -> None:
    old_tvm = replace(Versions.installed(), tvm="0.26.0")
    store.commit(
        ok(key, 1.0, family_version=1, decisions={"rows": 1}),
        ok(key, 2.0, family_version=2, decisions={"rows": 2}, versions=old_tvm),
        ok(key, 3.0, family_version=2, decisions={"rows": 3}),
    )
    records = KernelRecords([store], CPU, LLVM, {"gemm": 2})
    assert records.best("gemm", RENAMED) == Tuned({"rows": 3})
    assert records.best("conv", RENAMED) is None


def test_a_record_of_another_tvm_is_used_where_it_is_right(store: Store, key: str) -> None:
    old_tvm = replace(Versions.installed(), tvm="0.26.0")
    store.commit(*(ok(key, float(n), decisions={"rows": n}, versions=old_tvm) for n in (1, 2)))
    records = KernelRecords([store], CPU, LLVM)
    assert records.best("gemm", KERNEL) is None
    verified = replace(records, verify=lambda _kernel, tuned: tuned.decisions["rows"] == 2)
    found = verified.best("gemm", KERNEL)
    assert found is not None
    assert found.decisions == {"rows": 2}
    assert "measured with TVM 0.26.0" in found.note


def test_a_key_that_another_kernel_has_too_is_no_hindrance(store: Store) -> None:
    key = collide(store)
    assert key.endswith("-1")
    store.commit(ok(keys.workload_key(KERNEL), 1.0, decisions={"rows": 1}))
    assert KernelRecords([store], CPU, LLVM).best("gemm", RENAMED) is None
    store.commit(ok(key, 2.0, decisions={"rows": 2}))
    assert KernelRecords([store], CPU, LLVM).best("gemm", RENAMED) == Tuned({"rows": 2})


def test_such_a_key_survives_a_merge_and_a_pack(store: Store, tmp_path: Path) -> None:
    store.commit(ok(collide(store), 2.0, decisions={"rows": 2}))
    write_pack(store, tmp_path / "p.jsonl", kind="llvm", device_family="x86-64-v3")
    pack = load_pack(tmp_path / "p.jsonl")
    with open_store(tmp_path / "mine.db") as mine:  # where our kernel comes first
        mine.add_workload(keys.workload(KERNEL))
        found = KernelRecords([mine, pack], CPU, LLVM).best("gemm", RENAMED)
        assert found == Tuned({"rows": 2})
        exchange.merge(store, mine, keys.is_same_module)
        assert exchange.merge(store, mine, keys.is_same_module).n_new == 0
        assert KernelRecords([mine], CPU, LLVM).best("gemm", RENAMED) == Tuned({"rows": 2})


def test_a_record_of_a_relative_carries_its_note(store: Store, key: str) -> None:
    store.commit(ok(key, 2.0, device=OTHER_CPU))
    records = KernelRecords([store], CPU, LLVM)
    assert records.best("gemm", KERNEL) is None
    found = replace(records, allow_family=True).best("gemm", KERNEL)
    assert found is not None
    assert found.note.startswith("measured on another CPU, of the family x86-64-v3")


def test_sums_of_another_type_are_another_kernel(store: Store, key: str) -> None:
    store.commit(ok(key, 1.0, accumulation="float16"))
    assert KernelRecords([store], CPU, LLVM).best("gemm", KERNEL) is None


def test_the_type_of_sums_is_read_off_the_kernel() -> None:
    x = te.placeholder((4, 8), "int8", name="x")
    axis = te.reduce_axis((0, 8))
    total = te.compute((4,), lambda i: te.sum(x[i, axis].astype("int32"), axis), name="total")
    assert keys.accumulation(te.create_prim_func([x, total])) == "int32"
    assert keys.accumulation(scale_shift(dtype="float16")) == "float16"


def test_the_number_of_threads_is_a_part_of_the_device(monkeypatch: pytest.MonkeyPatch) -> None:
    target = targets.resolve("cpu")
    devices = []
    for number in (1, 2):
        monkeypatch.setattr(threads, "in_use", lambda number=number: number)
        devices.append(device_of(target))
    assert devices[0].fingerprint != devices[1].fingerprint
    assert devices[0].family == devices[1].family

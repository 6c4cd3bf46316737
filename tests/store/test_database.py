"""TVM's own passes on a view of a store."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.store.conftest import OTHER_CPU
from tests.store.kernels import scale_shift, scheduled
from tvmfuse import targets
from tvmfuse._tvm import relax, s_tir, tvm
from tvmfuse.store import Store, Versions, keys, open_store
from tvmfuse.store.database import StoreDatabase
from tvmfuse.store.devices import device_of, target_key
from tvmfuse.store.packs import load_pack, write_pack

ms = s_tir.meta_schedule
CPU = targets.resolve("cpu:x86-64-v3")
GPU = targets.resolve("cuda:sm_80")


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "tvmfuse.db") as store:
        yield store


def view(store: Store, target: targets.Target = CPU, **options: Any) -> Any:
    given = {"device": device_of(target), **options}
    return StoreDatabase(store, target_key(target), **given)


def trial(function: Any, rows: int, seconds: float, target: targets.Target = CPU) -> Any:
    schedule = scheduled(function, rows)
    module = keys.normalise(function)
    arguments = ms.arg_info.ArgInfo.from_prim_func(module["main"])
    workload = ms.database.Workload(module)
    return ms.database.TuningRecord(schedule.trace, workload, [seconds], target.tvm(), arguments)


def applied(database: Any, function: Any, target: targets.Target = CPU) -> Any:
    """Return a kernel after TVM's pass, as part of a module that calls it ``kernel``."""
    module = tvm.IRModule({"kernel": function.with_attr("global_symbol", "kernel")})
    with database, target.tvm():
        return relax.transform.MetaScheduleApplyDatabase()(module)["kernel"]


def is_scheduled(function: Any) -> bool:
    return "tirx.is_scheduled" in list(function.attrs.keys())


def test_the_best_record_is_applied_whatever_the_names(store: Store) -> None:
    for rows, seconds in ((2, 3e-3), (4, 1e-3), (8, 2e-3)):
        view(store).commit_tuning_record(trial(scale_shift(), rows, seconds))
    asking = scale_shift(names="XYZ", indices=("p", "q")).with_attr("op_pattern", 4)
    found = applied(view(store), asking)
    assert is_scheduled(found)
    assert found.attrs["op_pattern"] == 4
    assert "T.parallel(16)" in found.script()  # 64 rows, 4 at a time
    kernel = tvm.compile(found, target=CPU.tvm())
    x = np.linspace(-3, 3, 64 * 16, dtype="float32").reshape(64, 16)
    given, result = tvm.runtime.tensor(x), tvm.runtime.tensor(np.zeros_like(x))
    kernel["kernel"](given, result)
    np.testing.assert_allclose(result.numpy(), 2 * x + 1, rtol=1e-6)


def test_a_record_of_a_gpu_is_never_seen_on_a_cpu(store: Store) -> None:
    view(store, GPU).commit_tuning_record(trial(scale_shift(), 4, 1e-6, GPU))
    assert not is_scheduled(applied(view(store), scale_shift()))
    assert (len(view(store)), len(view(store, GPU))) == (0, 1)
    # TVM asks with its own target too.
    assert view(store, GPU).query_tuning_record(scale_module(), CPU.tvm(), "main") is None


def scale_module() -> Any:
    return keys.normalise(scale_shift())


def test_a_view_takes_no_record_of_another_kind(store: Store) -> None:
    # TVM turns what its callbacks raise into an error of its own.
    with pytest.raises(RuntimeError, match="this view is of llvm, but the record is of cuda"):
        view(store).commit_tuning_record(trial(scale_shift(), 4, 1e-6, GPU))


def test_the_view_answers_as_a_database_of_tvm(store: Store) -> None:
    database = view(store)
    assert not database.has_workload(scale_module())
    workload = database.commit_workload(scale_module())
    assert database.has_workload(keys.normalise(scale_shift(names="XYZ")))
    assert database.get_top_k(workload, 3) == []
    for rows, seconds in ((2, 3e-3), (4, 1e-3), (8, 2e-3)):
        database.commit_tuning_record(trial(scale_shift(), rows, seconds))
    best = database.get_top_k(workload, 2)
    assert [round(float(record.run_secs[0]), 6) for record in best] == [1e-3, 2e-3]
    assert len(database.get_all_tuning_records()) == len(database) == 3


def test_a_failure_of_tvm_is_not_kept_as_a_time(store: Store) -> None:
    view(store).commit_tuning_record(trial(scale_shift(), 4, 1e10))
    assert len(view(store)) == 0


def test_a_record_of_another_tvm_is_not_applied_unasked(store: Store) -> None:
    view(store).commit_tuning_record(trial(scale_shift(), 4, 1e-3))
    (record,) = store.records()
    versions = replace(Versions.installed(), tvm="0.26.0")
    other = replace(record, uid="0" * 32, versions=versions, target=target_key(GPU))
    with open_store(Path(store.name).with_name("old.db")) as old:
        old.add_workload(keys.workload(scale_shift()))
        old.commit(replace(other, target=record.target))
        assert not is_scheduled(applied(view(old), scale_shift()))
        assert is_scheduled(applied(view(old, allow_unverified=True), scale_shift()))


def test_a_pack_is_used_beneath_the_store(store: Store, tmp_path: Path) -> None:
    view(store, device=OTHER_CPU).commit_tuning_record(trial(scale_shift(), 4, 1e-3))
    write_pack(store, tmp_path / "p.jsonl", kind="llvm", device_family="x86-64-v3")
    pack = load_pack(tmp_path / "p.jsonl")
    with open_store(tmp_path / "mine.db") as mine:
        strict, lenient = (
            view(mine, packs=(pack,), allow_family=allowed) for allowed in (False, True)
        )
        assert not is_scheduled(applied(strict, scale_shift()))
        assert is_scheduled(applied(lenient, scale_shift()))


def test_a_function_that_is_scheduled_is_left_alone(store: Store) -> None:
    view(store).commit_tuning_record(trial(scale_shift(), 4, 1e-3))
    done = scale_shift().with_attr({"tirx.is_scheduled": True})
    module = tvm.IRModule({"main": done})
    assert view(store).query_tuning_record(module, CPU.tvm(), "main") is None

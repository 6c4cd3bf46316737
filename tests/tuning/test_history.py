"""The store remembers trials of this device, and lends what it knows of similar kernels."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.tuning.kernels import product, task
from tvmfuse.store import Device, KernelRecords, Store
from tvmfuse.store.keys import workload_key
from tvmfuse.tuning.history import VERSIONS, StoreHistory
from tvmfuse.tuning.measure import Trial

TASK = task()
GOOD = Trial(TASK.space.default, "measured", (3.0, 1.0, 2.0))
BAD = Trial({**TASK.space.default, "unroll": 8}, "timeout", reason="no answer")


def records(history: StoreHistory) -> KernelRecords:
    return KernelRecords([history.store], history.device, history.target, family_versions=VERSIONS)


def test_trials_come_back_as_they_were(history: StoreHistory) -> None:
    history.commit(TASK, GOOD)
    history.commit(TASK, BAD)
    assert history.past(TASK) == [GOOD, BAD]
    assert history.past(task(product(40))) == []


def test_only_what_was_confirmed_is_used_by_a_compile(history: StoreHistory) -> None:
    fast = Trial({**TASK.space.default, "unroll": 2}, "measured", (0.5,))
    history.commit(TASK, fast)
    key = workload_key(product())
    assert records(history).best("gemm", key) is None
    history.commit(TASK, GOOD, is_best=True)
    assert records(history).best("gemm", key) == GOOD.decisions


def test_trials_of_another_device_are_not_taken_for_ours(history: StoreHistory) -> None:
    history.commit(TASK, GOOD, is_best=True)
    elsewhere = replace(history, device=Device("llvm", "x86-64-v3", "another"))
    assert elsewhere.past(TASK) == []
    assert records(elsewhere).best("gemm", TASK.workload.key) is None


def test_similar_kernels_lend_their_trials_relative_to_their_default(
    history: StoreHistory,
) -> None:
    history.commit(TASK, GOOD)
    history.commit(TASK, Trial({**TASK.space.default, "unroll": 1}, "measured", (4.0,)))
    history.commit(TASK, BAD)
    other = task(product(40))
    samples = history.similar(other)
    assert [sample.cost for sample in samples] == pytest.approx([0.0, 0.693], abs=1e-3)
    assert samples[0].position == other.space.position(TASK.space.default)
    assert history.similar(TASK) == []


def test_a_reopened_store_still_knows(history: StoreHistory, store: Store) -> None:
    history.commit(TASK, GOOD)
    again = StoreHistory(store, history.device, history.target, history.session)
    assert again.past(TASK) == [GOOD]

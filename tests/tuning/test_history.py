"""The store remembers trials of this device, and lends what it knows of similar kernels."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import sqlalchemy as sa

from tests.tuning.kernels import MadeUp, product, task
from tvmfuse.plan import Tuned
from tvmfuse.store import Device, Store, Versions
from tvmfuse.store.kernels import KernelRecords
from tvmfuse.tuning.budget import Budget
from tvmfuse.tuning.history import VERSIONS, MemoryHistory, StoreHistory
from tvmfuse.tuning.measure import Trial
from tvmfuse.tuning.space import Point
from tvmfuse.tuning.tuner import Tuner

TASK = task()
UNROLLINGS = next(axis.options for axis in TASK.space.axes if axis.name == "unroll")
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
    assert records(history).best("gemm", product()) is None
    history.commit(TASK, GOOD, is_best=True)
    assert records(history).best("gemm", product()) == Tuned(GOOD.decisions)


def test_trials_of_another_device_are_not_taken_for_ours(history: StoreHistory) -> None:
    history.commit(TASK, GOOD, is_best=True)
    elsewhere = replace(history, device=Device("llvm", "x86-64-v3", "another"))
    assert elsewhere.past(TASK) == []
    assert records(elsewhere).best("gemm", product()) is None


def test_what_another_tvm_measured_is_measured_again(history: StoreHistory) -> None:
    history.commit(TASK, GOOD)
    versions = replace(Versions.installed(), tvm="0.28.0")
    later = replace(history, session=replace(history.session, versions=versions))
    assert later.past(TASK) == []


def test_a_trace_of_tvm_comes_back_and_is_used_for_the_kernel(history: StoreHistory) -> None:
    traced = Trial({"trace": "[[],[]]"}, "measured", (1.0,))
    history.commit(TASK, GOOD, is_best=True)
    history.commit(TASK, traced, is_best=True)
    assert history.past(TASK)[-1] == traced
    assert records(history).best("gemm", product()) == Tuned(trace=[[], []])


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


def test_similar_kernels_of_this_device_come_first_and_old_decisions_never(
    history: StoreHistory, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = replace(history.device, name="another")
    replace(history, device=device).commit(TASK, GOOD)
    history.commit(TASK, Trial({**TASK.space.default, "unroll": 1}, "measured", (4.0,)))
    foreign = replace(history.device, family="another")
    replace(history, device=foreign).commit(TASK, GOOD)
    other = task(product(40))
    positions = [sample.position for sample in history.similar(other)]
    assert positions[0] == other.space.position({**TASK.space.default, "unroll": 1})
    assert positions[1:] == [other.space.position(TASK.space.default)]
    monkeypatch.setattr("tvmfuse.tuning.history.VERSIONS", {TASK.family: 99})
    assert history.similar(other) == []


def test_similar_kernels_are_found_by_an_index(history: StoreHistory) -> None:
    history.commit(TASK, GOOD)
    asked: list[tuple[str, Any]] = []
    engine = history.store.backend.engine

    def note(_: object, __: object, statement: str, parameters: object, *___: object) -> None:
        asked.append((statement, parameters))

    sa.event.listen(engine, "before_cursor_execute", note)
    history.similar(task(product(40)))
    sa.event.remove(engine, "before_cursor_execute", note)
    statement, parameters = next(each for each in asked if "FROM records" in each[0])
    with engine.begin() as connection:
        plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {statement}", parameters).all()
    assert "records USING INDEX ix_records_family" in str(plan)
    assert "TEMP B-TREE" not in str(plan)  # they come in order


def test_a_search_begins_where_similar_kernels_were_fast(history: StoreHistory) -> None:
    def time_us(point: Point) -> float:
        return 100.0 + (UNROLLINGS.index(point["unroll"]) - 5) ** 2

    Tuner([TASK], MadeUp(time_us), history).run(Budget())  # all of a similar kernel
    other, asked = task(product(40)), {}
    for name, known in (("warm", history), ("cold", MemoryHistory())):
        measure = MadeUp(time_us)
        Tuner([other], measure, known).run(Budget(trials=5))
        asked[name] = [time_us(point) for point in measure.asked[1:]]  # after the default
    assert min(asked["warm"]) == 100.0
    assert sum(asked["warm"]) < sum(asked["cold"])


def test_a_reopened_store_still_knows(history: StoreHistory, store: Store) -> None:
    history.commit(TASK, GOOD)
    again = StoreHistory(store, history.device, history.target, history.session)
    assert again.past(TASK) == [GOOD]

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import sqlalchemy as sa

from tests.store.conftest import CPU, GROUP, LLVM, OTHER_CPU
from tvmfuse.errors import StoreError
from tvmfuse.plan import FusionPlan
from tvmfuse.store import Session, Store, schema
from tvmfuse.store.learning import (
    add_cost_model,
    add_measurements,
    measurements_of,
    newest_cost_model,
)
from tvmfuse.store.lessons import CostModelFile, FusionMeasurement
from tvmfuse.store.records import to_text


def test_measured_fusions_come_back_as_they_were(store: Store) -> None:
    session = Session("tune", "host")
    store.add_session(session)
    given = [
        FusionMeasurement(GROUP, CPU, LLVM, session.uid),
        FusionMeasurement(GROUP, CPU, LLVM),
        FusionMeasurement(GROUP, CPU, LLVM, schedule="tuned", spread_us=0.25),
    ]
    add_measurements(store, given)
    add_measurements(store, given)
    assert measurements_of(store, CPU) == given
    assert measurements_of(store, OTHER_CPU) == []


def test_the_newest_whole_model_of_the_device_is_found(store: Store) -> None:
    models = [CostModelFile("xgboost", 1, CPU, f'{{"tree": {n}}}', 10 * n) for n in range(3)]
    for model in (*models, CostModelFile("xgboost", 1, OTHER_CPU, "{}", 99)):
        add_cost_model(store, model)
    wanted = {"features_version": 1, "device": CPU}
    assert newest_cost_model(store, "xgboost", **wanted) == models[2]
    assert newest_cost_model(store, "xgboost", features_version=2, device=CPU) is None
    table = schema.cost_models
    damage = sa.update(table).where(table.c.uid == models[2].uid).values(content=b'{"tree": 9}')
    store.backend.write(lambda connection: connection.execute(damage))
    assert newest_cost_model(store, "xgboost", **wanted) == models[1]


def test_a_damaged_measurement_is_left_out(store: Store) -> None:
    add_measurements(store, [FusionMeasurement(GROUP, CPU, LLVM)])
    damage = sa.update(schema.fusion_measurements).values(candidate="{}")
    store.backend.write(lambda connection: connection.execute(damage))
    assert measurements_of(store, CPU) == []


def test_what_an_older_tvmfuse_wrote_is_whole(store: Store) -> None:
    given = FusionMeasurement(GROUP, CPU, LLVM)
    add_measurements(store, [given])
    older = json.loads(given.text)
    del older["gap_us"], older["notes"]  # fields that a plan did not have then
    values = {"candidate": to_text(older), "checksum": given.checksum_of(to_text(older))}
    change = sa.update(schema.fusion_measurements).values(values)
    store.backend.write(lambda connection: connection.execute(change))
    assert measurements_of(store, CPU) == [given]


def test_a_model_that_is_brought_in_later_is_not_newer(store: Store) -> None:
    own = CostModelFile("xgboost", 1, CPU, "{}", 20, created_at="2026-02-01T00:00:00")
    older = replace(own, trained_on=10, uid="older", created_at="2026-01-01T00:00:00")
    for model in (own, older):
        add_cost_model(store, model)
    assert newest_cost_model(store, "xgboost", features_version=1, device=CPU) == own


def test_a_pickle_is_no_cost_model() -> None:
    with pytest.raises(StoreError, match="kept as JSON"):
        CostModelFile("xgboost", 1, CPU, "\x80\x04", 1)


def test_checksums_cover_session_and_schedule() -> None:
    plain = FusionMeasurement(GROUP, CPU, LLVM)
    assert replace(plain, session="a").checksum != plain.checksum
    assert replace(plain, schedule="tuned").checksum != plain.checksum


def test_measurement_from_before_schedules_were_kept_is_whole() -> None:
    plain = FusionMeasurement(GROUP, CPU, LLVM)
    assert plain.text == to_text(FusionPlan((GROUP,)).to_json())

"""Tuning from Python: search, compile with what was found, and TVM's own flow with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import tvmfuse
from tests import graphs
from tvmfuse import _pipeline, errors
from tvmfuse._tvm import relax, tvm
from tvmfuse.store import open_store


@pytest.fixture(scope="module")
def model() -> tvm.IRModule:
    weight = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")
    return graphs.module(lambda x: relax.op.matmul(x, relax.const(weight)), (4, 8))


@pytest.fixture(scope="module")
def database(model: tvm.IRModule, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("api") / "tvmfuse.db"
    told = []
    report = tvmfuse.tune(model, trials=40, db=path, progress=told.append)
    assert len(told) == report.status.trials > 1
    return path


def test_a_compile_uses_what_was_tuned(model: tvm.IRModule, database: Path) -> None:
    compiled = tvmfuse.compile(model, db=database, require_tuned=True)
    assert [kernel.schedule for kernel in compiled.kernels] == ["tuned"]
    assert compiled.untuned == ()


def test_a_missing_record_is_an_error_where_all_are_required(
    model: tvm.IRModule, tmp_path: Path
) -> None:
    with open_store(tmp_path / "empty.db"):
        pass
    with pytest.raises(errors.TuningError, match=r"1 have none for this device: .*matmul"):
        tvmfuse.compile(model, db=tmp_path / "empty.db", require_tuned=True)


def test_the_variable_names_the_store(
    model: tvm.IRModule, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TVMFUSE_DB", str(database))
    assert tvmfuse.compile(model).untuned == ()
    monkeypatch.setenv("TVMFUSE_DB", str(database.with_name("missing.db")))
    with pytest.raises(errors.StoreError, match="there is no"):
        tvmfuse.compile(model)


def test_the_pass_for_tvm_uses_what_was_tuned(
    model: tvm.IRModule, database: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    used = []
    prepare = _pipeline.prepare

    def spied(*given: object, **options: object) -> _pipeline.Prepared:
        prepared = prepare(*given, **options)  # type: ignore[arg-type]
        used.append(prepared.schedules.tuned)
        return prepared

    monkeypatch.setattr("tvmfuse._pipeline.relax.prepare", spied)
    target = tvmfuse.target("cpu")
    tvm.compile(model, target.tvm(), relax_pipeline=tvmfuse.pipeline(target, db=database))
    tvm.compile(model, target.tvm(), relax_pipeline=_pipeline.pipeline(target))
    assert list(map(len, used)) == [1, 0]

"""A whole model is timed with records and without."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tvmfuse import _pipeline, bundle
from tvmfuse.errors import TuningError
from tvmfuse.frontend import import_model
from tvmfuse.passes.schedule import machine_of
from tvmfuse.targets import Target
from tvmfuse.tuning.measure import Trial
from tvmfuse.tuning.strategy import Search
from tvmfuse.tuning.task import tasks_of
from tvmfuse.tuning.tuner import Progress
from tvmfuse.tuning.whole_model import WholeModel


@pytest.fixture
def whole(product_onnx: Path, target: Target, tmp_path: Path) -> Iterator[WholeModel]:
    model = import_model(product_onnx)
    with WholeModel(model, target, tmp_path, threads=1, rounds=1) as whole:
        yield whole


@pytest.fixture
def kernel(whole: WholeModel, target: Target) -> Progress:
    prepared = _pipeline.prepare(whole.model.module, target)
    (task,) = tasks_of(prepared, machine_of(target))
    best = Trial({a.name: a.options[0] for a in task.space.axes}, "measured", (1.0,))
    return Progress(task, Search(task.space), best=best)


def test_both_ways_to_compile_a_model_run_in_turn(whole: WholeModel, kernel: Progress) -> None:
    assert whole.ratio([], [kernel]) > 0
    assert whole.default_us is not None
    before_us = whole.default_us
    assert whole.ratio([kernel], [kernel]) > 0
    assert whole.default_us == before_us  # it was not timed
    assert whole.time_default() == whole.default_us
    schedules = {
        path.name: [kernel.schedule for kernel in bundle.read(path).kernels()]
        for path in sorted(whole.folder.glob("*.tvmfuse"))
    }
    assert schedules == {"0.tvmfuse": ["family"], "1.tvmfuse": ["tuned"]}
    assert whole.build_s > 0


def test_kernels_are_timed_in_their_places(whole: WholeModel, kernel: Progress) -> None:
    ratios = whole.in_place([kernel])
    assert set(ratios) == {kernel.task.workload.key}
    assert all(ratio > 0 for ratio in ratios.values())


def test_a_build_that_crashes_is_told_and_the_next_one_is_timed(whole: WholeModel) -> None:
    whole.time_default()
    (process,) = [
        child for child in psutil.Process().children() if "tvmfuse.tuning.turns" in child.cmdline()
    ]
    process.kill()
    with pytest.raises(TuningError, match="the whole model cannot be timed: the worker ended"):
        whole.time_default()
    assert whole.time_default() > 0


def test_a_build_that_does_not_load_is_told(whole: WholeModel) -> None:
    whole.time_default()
    for file in whole.folder.glob("*.tvmfuse/*"):
        file.write_bytes(b"")
    whole._close()
    with pytest.raises(TuningError, match="the whole model cannot be timed"):
        whole.time_default()

"""A whole model is timed with records and without."""

from __future__ import annotations

from pathlib import Path

from tvmfuse import _pipeline, bundle
from tvmfuse.frontend import import_model
from tvmfuse.passes.schedule import machine_of
from tvmfuse.targets import Target
from tvmfuse.tuning.confirm import WholeModel
from tvmfuse.tuning.measure import Trial
from tvmfuse.tuning.strategy import Search
from tvmfuse.tuning.task import tasks_of
from tvmfuse.tuning.tuner import Progress


def test_both_ways_to_compile_a_model_run_in_turn(
    product_onnx: Path, target: Target, tmp_path: Path
) -> None:
    model = import_model(product_onnx)
    (task,) = tasks_of(_pipeline.prepare(model.module, target), machine_of(target))
    best = Trial({a.name: a.options[0] for a in task.space.axes}, "measured", (1.0,))
    kernel = Progress(task, Search(task.space), best=best)
    whole = WholeModel(model, target, tmp_path, threads=1, rounds=1)
    assert whole.ratio([], [kernel]) > 0
    plain, tuned = frozenset[str](), frozenset({task.workload.key})
    assert set(whole.times_us) == {plain, tuned}
    schedules = {
        path.name: [kernel.schedule for kernel in bundle.read(path).kernels()]
        for path in sorted(tmp_path.glob("*.tvmfuse"))
    }
    assert schedules == {"0.tvmfuse": ["family"], "1.tvmfuse": ["tuned"]}

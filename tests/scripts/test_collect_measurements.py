"""The measurements that a cost model learns from, collected from small networks."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import collect_measurements
import generated_graphs
import pytest
from collecting import prepared, timing
from collecting.entries import entries

from tvmfuse import targets
from tvmfuse._tvm import relax, tvm_ffi
from tvmfuse.calibrate import cache
from tvmfuse.cost import data, examples, shipped
from tvmfuse.plan import Candidate, RunTime


@pytest.mark.parametrize("seed", [0, 1, 2, *range(6, 12)])
def test_generated_network_is_well_formed_and_always_the_same(seed: int) -> None:
    module = generated_graphs.module(seed)
    relax.analysis.well_formed(module)
    assert tvm_ffi.structural_equal(generated_graphs.module(seed), module)


def test_generated_networks_are_of_three_element_types_and_of_several_sizes() -> None:
    modules = [generated_graphs.module(seed) for seed in range(6, 24)]
    entering = [str(module["main"].params[0].ty.dtype) for module in modules]
    assert entering[:6] == ["float16"] * 3 + ["float32"] * 3
    quantised = ["relax.quantize" in operators(module) for module in modules[:6]]
    assert quantised == [False] * 3 + [True] * 3
    narrow, again = modules[0], modules[12]  # a dozen later
    assert operators(narrow) == operators(again)
    assert narrow["main"].params[0].ty.shape != again["main"].params[0].ty.shape


def operators(module: Any) -> list[str]:
    bindings = module["main"].body.blocks[0].bindings
    return [binding.value.op.name for binding in bindings if hasattr(binding.value, "op")]


def test_interrupted_run_goes_on_where_it_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))  # no peaks of other tests
    target = targets.resolve("cpu")
    path = tmp_path / "rows.jsonl"
    about = ["--generated", "6", "--rounds", "2", "--sampled", "1", "generated_5"]
    collect = [*about, "--built", str(tmp_path / "built"), "--into", str(path)]
    assert collect_measurements.main(collect) == 1  # never calibrated
    # So low a peak that a busy machine reaches it, too.
    cache.store(target, replace(target.peaks, gflops=10.0, source="measured"))
    assert collect_measurements.main([*collect, "--phase", "prepare"]) == 0
    assert not path.exists()
    assert collect_measurements.main([*collect, "--phase", "time"]) == 0
    (found,) = data.read(path)
    assert {kernel.plan for kernel in found.kernels} >= {"optimal", "none"}
    assert all(kernel.us > 0 for kernel in found.kernels)
    assert {plan.model for plan in found.plans} == {"generated_5"}
    assert {plan.plan for plan in found.plans} >= {"optimal", "none", "prior", "everything"}
    assert examples.of([found])
    with path.open("a") as file:
        file.write('{"model": "cut o')
    assert collect_measurements.main(collect) == 0
    again = data.read(path)
    assert sum(len(run.kernels) for run in again) == len(found.kernels)
    # By the same cost model every plan is there already, and what is timed anew stands once.
    assert collect_measurements.main([*collect, "--again"]) == 0
    anew = data.read(path)
    assert [len(run.kernels) for run in anew][:-1] == [0] * (len(anew) - 1)
    assert len(anew[-1].kernels) == len(found.kernels)


def test_the_shorter_time_of_two_visits_counts_for_each_kernel() -> None:
    first, second = ([json.dumps({"us": us}) for us in times] for times in ((4.0, 9.0), (5.0, 6.0)))
    assert [json.loads(line)["us"] for line in timing.quicker(first, second)] == [4.0, 6.0]
    assert timing.ratio(first, second) == pytest.approx((0.8 + 1.5) / 2)


def test_plans_are_built_again_only_where_the_cost_model_chooses_otherwise(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FusesNothing:
        def predict(self, candidate: Candidate) -> RunTime:
            return RunTime(fused_us=100.0, unfused_us=1.0)

    entry = next(each for each in entries(None, None, generated=6) if each.name == "generated_5")
    options: dict[str, Any] = {"sampled": 1, "tuned_by": None}
    assert prepared.prepare(entry, tmp_path, "cpu", **options)
    (first,) = prepared.read(tmp_path, entry)
    assert {name for plan in first.plans.values() for name in plan.alike} >= {"optimal", "none"}
    assert prepared.prepare(entry, tmp_path, "cpu", **options) == 0
    other = shipped.Chosen(FusesNothing(), "made up")
    monkeypatch.setattr(shipped, "best", lambda *_args, **_options: other)
    prepared.prepare(entry, tmp_path, "cpu", **options)
    by_planner = {
        name: plan.groups
        for library in prepared.read(tmp_path, entry)
        for plan in library.plans.values()
        for name in plan.alike
    }
    assert by_planner["optimal"] == by_planner["none"] == ()
    assert by_planner["prior"]


def test_models_that_teach_most_come_first(tmp_path: Path) -> None:
    for name in ("magika", "light_resnet50", "opennsfw_resnet", "light_squeezenet"):
        (tmp_path / f"{name}.onnx").write_bytes(b" " * len(name))
    found = [entry.name for entry in entries(tmp_path, None, generated=5)]
    assert found[0] == "magika"  # a cost model is judged by it
    assert found.index("light_squeezenet") < found.index("opennsfw_resnet")  # a family first
    assert found.index("generated_2") < found.index("opennsfw_resnet")
    assert len(found) == len(set(found)) == 9

"""``tvmfuse cost``: train, eval, show, and which model a compile uses."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.cost import measured
from tvmfuse.cost import data

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("cost") / "model.json"
    path.write_text(measured.trained().to_text())
    return path


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    found = measured.measurements()
    path = tmp_path / "rows.jsonl"
    lines = [data.run_line(found.run), *data.lines(found.kernels, found.plans)]
    path.write_text("\n".join(lines) + "\n")
    return path


def test_model_is_trained_and_judged_on_what_it_has_not_seen(
    cli: Cli, rows: Path, tmp_path: Path
) -> None:
    split = tmp_path / "split.toml"
    split.write_text('held_out_families = ["family of net1"]\n')
    model = tmp_path / "model.json"
    answer = cli(
        "cost", "train", "--data", rows, "--split", split, "-o", model, "--rounds", "60", "--json"
    )
    assert answer.code == 0
    assert "net1" not in answer.json["models"]
    judge = ("cost", "eval", "--data", rows, "--split", split, "--target", "cpu:x86-64-v3")
    learned = cli(*judge, "--cost-model", model, "--json").json
    prior = cli(*judge, "--cost-model", "prior", "--json").json
    (score,), (before,) = learned["scores"], prior["scores"]
    assert score["model"] == "net1"
    assert score["median_error"] < 0.3 < before["median_error"]


def test_model_is_kept_in_the_store_and_used(
    cli: Cli, rows: Path, affine_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvmfuse import targets
    from tvmfuse.tuning import cost_models

    database = str(tmp_path / "mine.db")
    device = targets.resolve("cpu")
    count = cost_models.record(database, device, data.read(rows), "made up")
    assert count > 100
    answer = cli("cost", "train", "--db", database, "--rounds", "10")
    assert answer.code == 0
    note = cli("explain", affine_onnx, "--db", database, "--json").json["notes"][0]
    assert "learned on Test CPU" in note


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("missing.json", "cannot be read"),
        ("byte.json", "checksum"),
        ("diary.json", "must be JSON"),
    ],
)
def test_model_that_is_no_good_is_named_and_the_prior_used(
    cli: Cli, trained: Path, affine_onnx: Path, tmp_path: Path, name: str, says: str
) -> None:
    (tmp_path / "byte.json").write_text(trained.read_text().replace("Test CPU", "Rest CPU"))
    (tmp_path / "diary.json").write_text("dear diary")
    target = ("--target", "cpu:x86-64-v3")
    answer = cli("explain", affine_onnx, "--cost-model", tmp_path / name, *target, "--json")
    assert answer.code == 0
    (note,) = answer.json["notes"]
    assert note.startswith("times are predicted by the roofline alone: ")
    assert says in note
    assert "\n" not in note


def test_model_of_another_device_is_not_used(cli: Cli, trained: Path, affine_onnx: Path) -> None:
    target = ("--target", "cpu:x86-64-v4")
    answer = cli("explain", affine_onnx, "--cost-model", trained, *target, "--json")
    assert "it must be of x86-64-v4" in answer.json["notes"][0]


def test_too_few_measurements_are_one_line(cli: Cli, rows: Path, tmp_path: Path) -> None:
    few = tmp_path / "few.jsonl"
    few.write_text("".join(rows.read_text().splitlines(keepends=True)[:4]))
    answer = cli("cost", "train", "--data", few, "-o", tmp_path / "m.json")
    assert answer.code == 2
    assert "but got 3 of" in answer.error
    answer = cli("cost", "train", "--db", tmp_path / "empty.db")
    assert answer.code == 2


def test_features_behind_a_decision_are_shown(cli: Cli, trained: Path, affine_onnx: Path) -> None:
    target = ("--target", "cpu:x86-64-v3")
    node = cli("explain", affine_onnx, *target, "--json").json["fused"][0]["nodes"][0]
    show = ("cost", "show", affine_onnx, "--node", node, *target, "--cost-model")
    found = cli(*show, trained, "--json").json
    assert [kernel["label"] for kernel in found["kernels"]] == [
        "multiply + add",
        "multiply",
        "add",
    ]
    assert {"name", "value", "factor"} == set(found["kernels"][0]["features"][0])
    assert "saving" in found["verdict"]
    answer = cli(*show, "prior")
    assert answer.code == 0
    assert "memory_us" in answer.out
    assert cli("cost", "show", affine_onnx, "--node", "nobody").code == 2


@pytest.mark.skipif(shutil.which("nvcc") is None, reason="needs nvcc")
def test_registers_of_cuda_kernels_are_shown_without_a_gpu(cli: Cli, affine_onnx: Path) -> None:
    target = ("--target", "cuda:sm_80", "--cost-model", "prior")
    node = cli("explain", affine_onnx, *target, "--json").json["fused"][0]["nodes"][0]
    found = cli("cost", "show", affine_onnx, "--node", node, *target, "--json").json
    assert found["notes"] == []
    for kernel in found["kernels"]:
        features = {each["name"]: each["value"] for each in kernel["features"]}
        assert features["registers"] > 0
        assert features["spill_bytes"] == 0


def test_without_an_assembler_the_prior_is_told_alone(
    cli: Cli, affine_onnx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    target = ("--target", "cuda:sm_80", "--cost-model", "prior")
    node = cli("explain", affine_onnx, *target, "--json").json["fused"][0]["nodes"][0]
    genuine = shutil.which
    monkeypatch.setattr(shutil, "which", lambda name: None if name == "nvcc" else genuine(name))
    answer = cli("cost", "show", affine_onnx, "--node", node, *target, "--json")
    assert answer.code == 0
    (note,) = answer.json["notes"]
    assert note.startswith("registers and spills are not known: ")
    assert "nvcc" in note
    names = {each["name"] for kernel in answer.json["kernels"] for each in kernel["features"]}
    assert "registers" not in names


@pytest.mark.parametrize("time", ["0s", "soon", "-3s"])
def test_a_budget_that_is_none_is_named(cli: Cli, affine_onnx: Path, time: str) -> None:
    answer = cli("explain", affine_onnx, "--measure-budget", time)
    assert answer.code == 2
    assert "--measure-budget must be like" in answer.error

"""Every benchmark runs from its command line to its table; no time is asserted."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import check_peaks
import coverage_table
import end_to_end
import kernel_models
import onnx
import peers
import pytest
import single_kernels
from kernel_models import Kernel

pytestmark = pytest.mark.peers
SHORT = ["--rounds", "1", "--threads", "1", "--patience", "120"]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Write two small networks, and the list that names them."""
    folder = tmp_path_factory.mktemp("models")
    onnx.save(kernel_models.matmul_gelu(8, 16, 24), folder / "dense.onnx")
    onnx.save(kernel_models.rowwise("Softmax", 4, 8), folder / "rows.onnx")
    (folder / "models.toml").write_text(
        "models = {}\n"
        "[exported.dense]\ntiers = ['bench']\ninputs = {}\n"
        "[exported.rows]\ntiers = []\ninputs.x = { low = 0, high = 1 }\n"
    )
    return folder


@pytest.fixture
def options(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return options that measure little, into a folder of the test."""
    monkeypatch.setattr(coverage_table, "MODELS_TOML", models / "models.toml")
    return [*SHORT, "--results", str(tmp_path), "--scratch", str(tmp_path / "scratch")]


def rows(folder: Path, name: str) -> dict[tuple[str, str], dict[str, Any]]:
    report = json.loads((folder / f"{name}.json").read_text())
    return {(row["network"], row["side"]): row for row in report["rows"]}


def test_networks_are_timed_against_onnxruntime(
    models: Path, options: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert end_to_end.main(["--models", str(models), *options]) == 0
    found = rows(tmp_path, "end_to_end")
    assert found.keys() == {("dense", "tvmfuse"), ("dense", "onnxruntime")}
    assert not any(row["cause"] for row in found.values())
    assert found["dense", "tvmfuse"]["gflop"] > 2 * 8 * 16 * 24 / 1e9
    table = capsys.readouterr().out
    assert "in the geometric mean of 1 networks" in table
    assert table.strip() == (tmp_path / "end_to_end.md").read_text().strip()


def test_peers_are_timed_and_those_without_what_they_need_are_named(
    models: Path, options: list[str], tmp_path: Path
) -> None:
    command = ["--models", str(models), "--peers", "tvm,tuned", *options, "rows"]
    assert peers.main(command) == 0
    found = rows(tmp_path, "peers")
    assert found.keys() == {("rows", side) for side in ("tvmfuse", "onnxruntime", "tvm")}
    assert not any(row["cause"] for row in found.values())
    assert "- tvmfuse, tuned: not measured; no store" in (tmp_path / "peers.md").read_text()


def test_kernels_are_timed_beside_their_limits(
    options: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = (
        Kernel("dense", "matmul", "8×16×24", lambda: kernel_models.matmul_gelu(8, 16, 24), 10_000),
        Kernel(
            "sum", "memory", "x + y", lambda: kernel_models.elementwise("Add", 2, (4, 8)), 0, 512
        ),
        Kernel("heads", "attention", "2 heads", lambda: kernel_models.attention(2, 8, 8), 10_000),
    )
    peaks = dict.fromkeys(check_peaks.TOLERANCE, 10.0)
    monkeypatch.setattr(single_kernels, "all_kernels", lambda: small)
    monkeypatch.setattr(
        check_peaks, "measure", lambda threads: check_peaks.Peaks(threads, peaks, peaks)
    )
    monkeypatch.setattr(check_peaks, "TRIAD_BYTES", 1 << 20)
    assert single_kernels.main(["--sides", "tvmfuse,onnxruntime", *options]) == 0
    found = rows(tmp_path, "kernels")
    assert found.keys() == {
        (kernel.name, side) for kernel in small for side in ("tvmfuse", "onnxruntime")
    }
    assert not any(row["cause"] for row in found.values())
    assert found["dense", "tvmfuse"]["limit_us"] == 1.0
    assert "85% of peak" in (tmp_path / "kernels.md").read_text()


def test_peaks_are_measured_both_ways_and_what_is_off_is_said() -> None:
    with check_peaks.loops_in_c(threads=1) as run:
        assert 0 < run("flops") < math.inf
        assert 0 < run("triad", 1 << 10) < math.inf
    ours = dict.fromkeys(check_peaks.TOLERANCE, 10.0)
    peaks = check_peaks.Peaks(1, ours, {**ours, "triad": 12.0})
    assert peaks.triad_gbps == 12.0
    table = check_peaks.markdown(peaks, {"processor": "CPU", "load": 0.1})
    assert (
        "| STREAM's triad, write-allocate counted | 10.0 GB/s | 12.0 | 0.83 | 5% – **off** |"
        in table
    )
    assert table.count("off") == 1

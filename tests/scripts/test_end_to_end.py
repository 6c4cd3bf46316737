"""The table of networks says what was reached, and what was not measured."""

from __future__ import annotations

from typing import Any

import end_to_end
from outcome import Result


def rows(name: str, us: float, ratio: float, *, seconds: float = 5.0) -> list[dict[str, Any]]:
    compiled = {"kernels": 12, "schedules": {}, "seconds": seconds, "peak_mib": 900.0}
    ours = Result(name, "tvmfuse", rounds_us=(us,), ratios=(1.0,), compiled=compiled)
    peer = Result(name, "onnxruntime", rounds_us=(us * ratio,), ratios=(ratio,))
    return [{**result.to_json(), "gflop": 0.5} for result in (ours, peer)]


def report(*networks: list[dict[str, Any]], left: tuple[str, ...] = ()) -> dict[str, Any]:
    return {
        "date": "2025-01-01",
        "machine": {"processor": "CPU"},
        "load": [0.1, 0.2],
        "threads": 2,
        "rounds": 1,
        "peak_gflops": 100.0,
        "left": list(left),
        "rows": [row for network in networks for row in network],
    }


def test_mean_worst_and_compiling_are_judged() -> None:
    table = end_to_end.markdown(report(rows("a", 1e4, 2.0), rows("bert_base", 2e4, 0.9)))
    assert "**1.34× ONNX Runtime's speed in the geometric mean of 2 networks, 0.90×" in table
    assert "at worst (bert_base)**; to reach: 1.00×, and none under 0.80×: yes.\n" in table
    assert "Compiling takes 5.0 s at most (a), and 900 MiB (a)" in table
    assert "bert_base under 30 s, resnet50 under 60 s, 3072 MiB: yes.\n" in table
    line = (
        "| a | 10.0 [10.0, 10.0] | 20.0 [20.0, 20.0] | 2.00 [2.00, 2.00] | 50 % | 12 | 5.0 | 900 |"
    )
    assert line in table


def test_what_is_too_slow_fails_or_was_left_out_is_said() -> None:
    failed = rows("b", 1e4, 1.0)
    failed[0] = {**Result("b", "tvmfuse", cause="refused: no Einsum").to_json(), "gflop": 0.0}
    failed[1]["ratio"] = None
    slow = rows("bert_base", 1e4, 0.7, seconds=31.0)
    table = end_to_end.markdown(report(rows("a", 1e4, 2.0), failed, slow, left=("c",)))
    assert "0.70× at worst (bert_base)**; to reach: 1.00×, and none under 0.80×: no.\n" in table
    assert "3072 MiB: no.\n" in table
    assert "| b | refused: no Einsum | | | | | | |\n" in table
    assert table.endswith("Not measured, for the run had a limit: c.\n")

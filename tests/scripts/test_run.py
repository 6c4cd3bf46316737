"""`make run` shows what it does and stops where it fails."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path

import pytest
import run


def test_commands_bind_every_shape_and_end_with_the_timing() -> None:
    lines = [
        shlex.join(command)
        for command in run.commands(Path("models/net.onnx"), {"x:0": (1, 3), "y": (2,)})
    ]
    assert lines == [
        "tvmfuse calibrate",
        "tvmfuse doctor",
        "tvmfuse compile models/net.onnx --shape x:0=1,3 --shape y=2 -o models/net.tvmfuse",
        "tvmfuse explain models/net.onnx --shape x:0=1,3 --shape y=2",
        "tvmfuse run models/net.tvmfuse --compare onnxruntime --model models/net.onnx",
        "tvmfuse bench models/net.tvmfuse --model models/net.onnx",
    ]


def test_a_command_is_shown_before_it_runs(capfd: pytest.CaptureFixture[str]) -> None:
    code = run.show(("say", "a b"), (sys.executable, "-c", "print('ran'); raise SystemExit(3)"))
    assert code == 3
    assert capfd.readouterr().out == "\n$ say 'a b'\nran\n"

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tvmfuse.cli import bench

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


@pytest.mark.peers
def test_both_sides_are_timed_with_the_same_threads(
    cli: Cli, folder: Path, affine_onnx: Path
) -> None:
    options = ("--model", affine_onnx, "--rounds", "2", "--threads", "1")
    found = cli("bench", folder, *options, "--json").json
    assert list(found) == ["schema", "command", "machine", "threads", "sides", "missing"]
    assert found["threads"] == 1
    assert found["machine"]["processor"]
    assert [side["side"] for side in found["sides"]] == ["tvmfuse", "onnxruntime"]
    assert [len(side["rounds_us"]) for side in found["sides"]] == [2, 2]


def test_a_bundle_alone_is_timed(cli: Cli, folder: Path) -> None:
    answer = cli("bench", folder, "--rounds", "1", "--threads", "1")
    assert answer.code == 0
    assert "tvmfuse" in answer.out
    assert "1 thread each" in " ".join(answer.out.split())


def test_a_peer_that_is_not_installed_is_named(
    cli: Cli, folder: Path, affine_onnx: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bench, "_PEERS", ("no_such_runtime",))
    options = ("--model", affine_onnx, "--peers", "no_such_runtime", "--rounds", "1")
    answer = cli("bench", folder, *options)
    assert answer.code == 0
    assert "no_such_runtime is not installed" in answer.out


def test_an_unknown_peer_is_2(cli: Cli, folder: Path, affine_onnx: Path) -> None:
    answer = cli("bench", folder, "--model", affine_onnx, "--peers", "abacus")
    assert answer.code == 2
    assert "the known peers are onnxruntime, but got 'abacus'" in answer.error


def test_a_missing_model_is_2(cli: Cli, folder: Path, tmp_path: Path) -> None:
    answer = cli("bench", folder, "--model", tmp_path / "missing.onnx")
    assert answer.code == 2
    assert "missing.onnx" in answer.error


@pytest.mark.skipif(sys.platform == "win32", reason="there is no SIGINT to send")
def test_an_interrupt_ends_the_benchmark_and_its_workers(folder: Path) -> None:
    command = [sys.executable, "-m", "tvmfuse", "bench", str(folder), "--rounds", "1000"]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=Path(__file__).parents[2],
        # A shell that runs the tests in the background lets them ignore interrupts.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    assert process.stderr is not None
    while "load tvmfuse" not in process.stderr.readline():  # shown once it is done
        assert process.poll() is None
    workers = _children(process.pid)
    assert workers
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert not any(_is_running(worker) for worker in workers)


def _children(pid: int) -> list[int]:
    import psutil

    return [child.pid for child in psutil.Process(pid).children(recursive=True)]


def _is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


def test_a_healthy_machine_is_0(cli: Cli) -> None:
    answer = cli("doctor")
    assert answer.code == 0, answer.out
    for word in ("TVM", "C++ compiler", "processor", "threads", "cache", "onnxruntime", "torch"):
        assert word in answer.out


def test_json_holds_every_check(cli: Cli) -> None:
    found = cli("doctor", "--json").json
    assert list(found) == ["schema", "command", "healthy", "checks"]
    assert found["healthy"] is True
    assert all(list(check) == ["name", "state", "found", "fix"] for check in found["checks"])
    assert {check["state"] for check in found["checks"]} <= {"ok", "absent"}


def test_a_compiler_for_cuda_is_told_with_version_and_path(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tvmfuse.targets import cuda_toolkit

    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'Cuda compilation tools, release 13.0, V13.0.88'\n")
    nvcc.chmod(0o755)
    monkeypatch.setattr(cuda_toolkit, "toolkits", lambda: ())
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    (cuda,) = (c for c in cli("doctor", "--json").json["checks"] if c["name"] == "CUDA compiler")
    assert (cuda["state"], cuda["found"]) == ("ok", f"nvcc 13.0.88, {nvcc}")


def _broken(found: dict) -> dict:
    (check,) = (check for check in found["checks"] if check["state"] == "broken")
    return check


def test_a_missing_compiler_is_2_with_what_to_do(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    answer = cli("doctor", "--json")
    assert answer.code == 2
    assert _broken(answer.json)["name"] == "C++ compiler"
    assert "set CXX to its path" in _broken(answer.json)["fix"]


def test_a_compiler_that_fails_is_2_with_what_it_said(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiler = tmp_path / "broken++"
    compiler.write_text("#!/bin/sh\necho 'cmath: No such file' >&2\nexit 1\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    answer = cli("doctor", "--json")
    assert answer.code == 2
    assert "cmath: No such file" in _broken(answer.json)["fix"]


_OTHER_FFI = """
import importlib.metadata, sys
genuine = importlib.metadata.version
importlib.metadata.version = lambda name: "0.1.15" if name == "apache-tvm-ffi" else genuine(name)
"""


def test_a_pair_of_versions_that_crashes_is_2_with_what_to_install(
    process: Cli, tmp_path: Path
) -> None:
    (tmp_path / "sitecustomize.py").write_text(_OTHER_FFI)
    root = str(Path(__file__).parents[2])
    answer = process("doctor", "--json", PYTHONPATH=f"{tmp_path}:{root}")
    assert answer.code == 2, answer.err
    assert _broken(answer.json)["name"] == "TVM"
    assert "pip install 'apache-tvm==0.27.0.post1'" in _broken(answer.json)["fix"]


def test_a_cache_that_cannot_be_written_to_is_told_but_is_no_fault(process: Cli) -> None:
    answer = process("doctor", "--json", HOME="/proc/nobody", XDG_CACHE_HOME="/proc/nobody")
    assert answer.code == 0, answer.err
    (cache,) = (check for check in answer.json["checks"] if check["name"] == "cache")
    assert cache["state"] == "absent"
    assert "XDG_CACHE_HOME" in cache["fix"]

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tvmfuse.store import Filter, open_store

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


@pytest.fixture(scope="session")
def small_onnx(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One matrix product with four ways to be scheduled."""
    import onnx
    from onnx import TensorProto, helper, numpy_helper

    weight = np.random.default_rng(0).standard_normal((8, 16)).astype("float32")
    graph = helper.make_graph(
        [helper.make_node("MatMul", ["x", "w"], ["y"])],
        "small",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4, 16])],
        [numpy_helper.from_array(weight, "w")],
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    path = tmp_path_factory.mktemp("onnx") / "small.onnx"
    onnx.save(model, path)
    return path


def statuses(database: Path) -> list[str]:
    with open_store(database) as store:
        return [record.status for record in store.records(Filter()) if record is not None]


def test_what_was_tuned_is_used_by_a_compile(cli: Cli, small_onnx: Path, tmp_path: Path) -> None:
    database, bundle = tmp_path / "t.db", tmp_path / "m.tvmfuse"
    refused = cli("compile", small_onnx, "-o", bundle, "--require-tuned")
    assert refused.code == 1
    assert "a record of every kernel is required, but 1 have none" in refused.error
    assert not bundle.exists()
    answer = cli("tune", small_onnx, "--trials", "40", "--db", database, "--no-learn", "--json")
    assert answer.code == 0, answer.err
    found = answer.json
    assert (found["command"], found["model"], found["failures"]) == ("tune", "small", 0)
    assert found["learned"] == ""
    (kernel,) = found["kernels"]
    assert kernel["trials"] == kernel["points"] <= 40  # all were measured
    assert statuses(database).count("ok") == 1  # the default, or what beat it
    compiled = cli("compile", small_onnx, "-o", bundle, "--db", database, "--require-tuned")
    assert compiled.code == 0, compiled.err
    assert "1 of 1" in compiled.out


def test_people_are_told_what_was_found(cli: Cli, small_onnx: Path, tmp_path: Path) -> None:
    answer = cli("tune", small_onnx, "--trials", "2", "--db", tmp_path / "t.db")
    assert answer.code == 0
    assert "small on cpu" in answer.out
    assert "2 trials in" in answer.out
    assert "learns from 100 kernels of 2 models on; so far 1 of 1 are measured" in answer.out
    assert "search 1 kernel " in answer.err


BAD: dict[str, tuple[list[str], str]] = {
    "time": (["--time", "soon"], "--time must be like 90s, 5m or 2h, but got 'soon'"),
    "no time": (["--time", "0m"], "but got '0m'"),
    "share": (["--until-within", "120%"], "--until-within must be like 5%, but got '120%'"),
    "trials": (["--trials", "0"], "--trials"),
    "target": (["--target", "cuda:sm_80"], "must be a CPU that is this machine"),
    "store": (["--db", "ftp://somewhere/db"], "ftp://"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_cannot_be_done_is_one_line_and_2(
    cli: Cli, small_onnx: Path, tmp_path: Path, case: str
) -> None:
    options, said = BAD[case]
    given: list[Any] = ["--db", tmp_path / "t.db", *options]
    answer = cli("tune", small_onnx, *given)
    assert answer.code == 2
    assert said in answer.error
    assert answer.out == ""


def test_the_untuned_are_named_in_json(cli: Cli, small_onnx: Path, tmp_path: Path) -> None:
    answer = cli("compile", small_onnx, "-o", tmp_path / "m", "--json")
    (name,) = answer.json["untuned"]
    assert name.startswith("matmul")


def test_a_store_that_cannot_be_written_to_is_one_line_and_2(
    cli: Cli, small_onnx: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = tmp_path / "t.db"
    with open_store(database):
        pass
    genuine = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK and genuine(path, mode))
    answer = cli("tune", small_onnx, "--trials", "1", "--db", database)
    assert answer.code == 2
    assert "cannot be written to; choose another by --db" in answer.error


FULL_DISK = """
import resource, signal, sys
from tvmfuse.cli import main
from tvmfuse.tuning.history import StoreHistory
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
commit = StoreHistory.commit
def full_after_two(self, *args, **how):
    commit(self, *args, **how)
    if len(list(self.store.records())) == 2:
        resource.setrlimit(resource.RLIMIT_FSIZE, (1, 1))
StoreHistory.commit = full_after_two
sys.exit(main())
"""


@pytest.mark.skipif(sys.platform == "win32", reason="no limit of a file's size")
def test_a_full_disk_ends_a_run_with_one_line_and_keeps_its_trials(
    small_onnx: Path, tmp_path: Path
) -> None:
    database = tmp_path / "t.db"
    with open_store(database):
        pass
    command = [sys.executable, "-c", FULL_DISK, "tune", str(small_onnx), "--db", str(database)]
    done = subprocess.run([*command, "--trials", "9"], capture_output=True, text=True, check=False)
    assert done.returncode == 2, done.stderr
    assert "Traceback" not in done.stderr
    assert "cannot be written to" in done.stderr.splitlines()[-1]
    assert statuses(database) == ["measured", "measured"]

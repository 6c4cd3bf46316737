from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tvmfuse.cli import app

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

COMMANDS = ("compile", "explain", "bisect", "run", "bench", "calibrate", "doctor")

_IMPORTS = """
import sys
sys.argv = ["tvmfuse", *sys.argv[1:]]
from tvmfuse.cli import main
code = main()
heavy = {"tvm", "tvm_ffi", "onnx", "onnxruntime", "numpy", "scipy", "torch"} & set(sys.modules)
sys.exit(f"imported {heavy}" if heavy else code)
"""


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], *([c, "--help"] for c in COMMANDS)]
)
def test_help_imports_nothing_heavy(arguments: list[str]) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _IMPORTS, *arguments], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert done.stdout


def test_help_names_every_command(cli: Cli) -> None:
    out = cli("--help").out
    assert all(f" {command} " in out for command in COMMANDS)


def test_without_a_command_the_help_is_shown(cli: Cli) -> None:
    answer = cli()
    assert answer.code == 2
    assert "Usage" in answer.out + answer.err


def test_the_version_names_the_pair(cli: Cli) -> None:
    answer = cli("--version")
    assert answer.code == 0
    assert "apache-tvm 0.27.0.post1, apache-tvm-ffi 0.1.14" in answer.out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["fuse"], "tvmfuse: No such command 'fuse'; see tvmfuse --help"),
        (["compile"], "tvmfuse: Missing argument 'MODEL'; see tvmfuse compile --help"),
        (["compile", "m.onnx"], "tvmfuse: Missing option '--output' / '-o'"),
        (["run", "b", "--rtol", "tight"], "tvmfuse: Invalid value for '--rtol'"),
        (["bench", "b", "--rounds", "0"], "tvmfuse: Invalid value for '--rounds'"),
        (["doctor", "--fast"], "tvmfuse: No such option: --fast"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
def test_a_wrong_command_line_is_one_line_and_2(
    cli: Cli, arguments: list[str], message: str
) -> None:
    answer = cli(*arguments)
    assert answer.code == 2
    assert answer.out == ""
    assert answer.err.startswith(message)
    assert answer.err.count("\n") == 1


def test_an_error_that_nobody_foresaw_is_one_line_and_1(
    cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    def surprise() -> None:
        raise KeyError("two\nlines")

    monkeypatch.setitem(app._COMMANDS, "doctor", surprise)
    answer = cli("doctor")
    assert answer.code == 1
    assert answer.err.startswith("tvmfuse: internal error: KeyError: ")
    assert answer.err.endswith("(tvmfuse -v COMMAND shows where)\n")
    assert answer.err.count("\n") == 1


def test_verbose_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def surprise() -> None:
        raise KeyError("where")

    monkeypatch.setitem(app._COMMANDS, "doctor", surprise)
    answer = cli("-v", "doctor")
    assert answer.code == 1
    assert "in surprise" in answer.err
    assert answer.err.endswith("tvmfuse: internal error: KeyError: 'where'\n")


def test_an_interrupt_is_130_and_no_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setitem(app._COMMANDS, "doctor", interrupted)
    answer = cli("doctor")
    assert answer.code == 130
    assert "Traceback" not in answer.err

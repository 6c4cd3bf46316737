from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from tvmfuse.patterns.registry import builtin

if TYPE_CHECKING:
    from tests.cli.conftest import Cli

PATTERN = """
import tvmfuse

class Bump(tvmfuse.Pattern):
    name = "bump"
    family = "elementwise"

    def graph(self, op, x):
        return op.nn.relu(op.exp(op.square(x)))

    def reference(self, x):
        raise NotImplementedError

tvmfuse.register(Bump())
"""


def test_ls_lists_every_pattern_with_its_source_and_tests(cli: Cli) -> None:
    rows = cli("patterns", "ls", "--json").json["patterns"]
    assert [row["name"] for row in rows] == [pattern.name for pattern in builtin().patterns]
    for row, pattern in zip(rows, builtin().patterns, strict=True):
        assert row["source"] == "tvmfuse"
        assert row["cases"] == len(pattern.cases) > 0
        assert row["near_misses"] == len(pattern.near_misses) > 0
        assert row["summary"]
        assert Path(row["file"]).is_file()
    shown = cli("patterns", "ls").out
    assert all(pattern.name in shown for pattern in builtin().patterns)


def test_ls_lists_those_of_a_file_first(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bump.py").write_text(PATTERN)
    rows = cli("patterns", "ls", "--patterns", tmp_path / "bump.py", "--json").json["patterns"]
    assert (rows[0]["name"], rows[0]["source"]) == ("bump", str(tmp_path / "bump.py"))


def test_show_names_the_cases(cli: Cli) -> None:
    out = cli("patterns", "show", "softmax").out
    assert "scaled and masked" in out
    assert "the mask stretches the scores" in out


def test_show_of_an_unknown_name_is_2(cli: Cli) -> None:
    answer = cli("patterns", "show", "sofmax")
    assert answer.code == 2
    assert "there is no pattern 'sofmax'; there are conv_bn_act" in answer.error


def test_the_contract_of_ours_holds(cli: Cli) -> None:
    answer = cli("patterns", "test", "softmax", "--json")
    assert answer.code == 0
    tests = answer.json["tests"]
    assert {test["test"] for test in tests} == {
        "is met in models",
        "matches once",
        "is right",
        "is one kernel",
        "refuses",
    }


def test_a_pattern_without_cases_fails(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bump.py").write_text(PATTERN)
    answer = cli("patterns", "test", tmp_path / "bump.py")
    assert answer.code == 1
    assert "it has none" in answer.out


def test_a_graph_that_no_model_has_fails(cli: Cli, tmp_path: Path) -> None:
    case = 'cases = (tvmfuse.Case("all", {"x": tvmfuse.Operand((4, 4))}),)'
    (tmp_path / "bump.py").write_text(PATTERN.replace('name = "bump"', f'name = "bump"; {case}'))
    tests = cli("patterns", "test", tmp_path / "bump.py", "--json").json["tests"]
    (met,) = [test for test in tests if test["test"] == "is met in models"]
    assert "a simpler form, where its cases are multiply + exp + nn.relu" in met["fault"]


def test_a_file_that_does_not_run_is_2(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "bad.py").write_text("import nothing_at_all")
    answer = cli("patterns", "test", tmp_path / "bad.py")
    assert answer.code == 2
    assert "bad.py: must run as Python, but line 1: ModuleNotFoundError" in answer.error

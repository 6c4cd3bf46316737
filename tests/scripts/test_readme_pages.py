"""Blocks of README and docs/results.md are whole, folded or short."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import readme
import speed_summary

TABLE = "| a |\n| --- |\n" + "".join(f"| {i} |\n" for i in range(20))
CONTENT = (
    f"Day and machine.\n\n{TABLE}\nThe end.\n\n<details>\n<summary>all</summary>\n\nx\n</details>\n"
)


@pytest.fixture
def results(tmp_path: Path) -> Path:
    (tmp_path / "long.md").write_text(CONTENT)
    (tmp_path / "brief.md").write_text("| a |\n| --- |\n| 1 |\n")
    return tmp_path


def page(name: str, how: str = "") -> str:
    return f"before\n<!-- begin {name}{how} -->\nold\n<!-- end {name} -->\nbehind\n"


def block(text: str) -> str:
    return text.partition(" -->\n")[2].rpartition("<!-- end")[0]


def test_a_block_is_what_the_script_wrote(results: Path) -> None:
    assert block(readme.filled(page("long"), results)) == CONTENT


def test_a_long_table_is_folded_behind_its_title(results: Path) -> None:
    found = block(readme.filled(page("long", ", folded: one by one"), results))
    folded = f"<details>\n<summary>one by one</summary>\n\n{TABLE}\n</details>\n"
    assert found == CONTENT.replace(TABLE, folded)


def test_several_long_parts_have_titles_of_their_own(results: Path) -> None:
    long = "- a line\n" * (readme.LONG + 1)
    found = readme.shown(f"{TABLE}\n{long}\n{TABLE}", "folded: numbers; causes")
    assert re.findall("<summary>(.*)</summary>", found) == ["numbers", "causes", "causes"]


def test_a_short_table_is_not_folded(results: Path) -> None:
    assert "<details>" not in readme.filled(page("brief", ", folded: one by one"), results)


def test_short_leaves_out_what_is_long_or_folded_already(results: Path) -> None:
    found = block(readme.filled(page("long", ", short"), results))
    assert found == "Day and machine.\n\nThe end.\n"


def test_what_is_not_measured_is_empty_and_the_rest_of_a_page_stays(results: Path) -> None:
    found = readme.filled(page("nothing"), results)
    assert found == "before\n<!-- begin nothing -->\n<!-- end nothing -->\nbehind\n"


def test_a_fenced_text_is_one_piece() -> None:
    text = "```text\n| no table |\n- no list\n```\n| a |\n"
    assert list(readme.runs(text)) == ["```text\n| no table |\n- no list\n```\n", "| a |\n"]


def test_check_names_the_page_that_is_stale(
    results: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = results / "page.md"
    file.write_text(page("brief"))
    arguments = ["--pages", str(file), "--results", str(results)]
    assert readme.main([*arguments, "--check"]) == 1
    assert f"{file}: not what" in capsys.readouterr().out
    assert readme.main(arguments) == 0
    assert readme.main([*arguments, "--check"]) == 0


def rows(network: str, **ratios: float | None) -> list[dict]:
    return [
        {"network": network, "side": side, "ratio": ratio}
        for side, ratio in {"tvmfuse": 1.0, **ratios}.items()
    ]


def test_the_summary_has_a_line_for_each_network_and_the_nearest_peer_first(
    tmp_path: Path,
) -> None:
    about = {"date": "2026-01-02", "machine": {"processor": "P"}, "threads": 2}
    titles = {"slow": {"title": "Slow"}, "onnxruntime": {"title": "ONNX Runtime"}}
    peers = [*rows("a", slow=200.0, onnxruntime=1.5), *rows("b", slow=None, onnxruntime=2.0)]
    networks = [*rows("a", onnxruntime=1.0), *rows("c", onnxruntime=4.0)]
    (tmp_path / "peers.json").write_text(json.dumps({**about, "sides": titles, "rows": peers}))
    assert speed_summary.markdown(tmp_path) == ""
    (tmp_path / "end_to_end.json").write_text(json.dumps({**about, "rows": networks}))
    heading, _, *table = speed_summary.markdown(tmp_path).splitlines()
    assert heading.startswith("2026-01-02, P, 2 threads")
    assert table == [
        "| | ONNX Runtime | Slow |",
        "| --- | --- | --- |",
        "| a | 1.50× | 200× |",
        "| b | 2.00× |  |",
        "| 2 networks, geometric mean | 2.00× |  |",
    ]

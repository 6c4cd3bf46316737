from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

import pytest

from tvmfuse.cli import console

if TYPE_CHECKING:
    from tests.cli.conftest import Cli


@pytest.mark.parametrize(
    ("time_us", "text"),
    [(0.0, "0 µs"), (0.1234, "0.123 µs"), (12.34, "12.3 µs"), (1234.5, "1.23 ms"), (2e6, "2 s")],
)
def test_a_time_has_three_digits_and_a_unit(time_us: float, text: str) -> None:
    assert console.duration(time_us) == text


def test_a_range_of_times_has_one_unit() -> None:
    assert console.duration(548.0, 1704.0) == "0.548 – 1.7 ms"


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [(1, "group", "1 group"), (0, "group", "0 groups"), (2, "match", "2 matches")],
)
def test_a_number_has_its_noun(number: int, noun: str, text: str) -> None:
    assert console.count(number, noun) == text


def test_what_libraries_print_does_not_reach_standard_output(
    capfd: pytest.CaptureFixture[str],
) -> None:
    with console.stages() as begin:
        begin("noise")
        sys.stdout.write("from Python\n")
        os.write(1, b"from C\n")
    console.print_text("the result")
    out, err = capfd.readouterr()
    assert out == "the result\n"
    assert "from Python" in err
    assert "from C" in err


def test_a_name_in_brackets_is_no_markup(capfd: pytest.CaptureFixture[str]) -> None:
    console.print_table("Names", ("name",), [("[bold]x[/bold]",), ("a[0]",)])
    console.print_text("[red]y")
    out = capfd.readouterr().out
    assert "[bold]x[/bold]" in out
    assert "a[0]" in out
    assert "[red]y" in out


def test_a_pipe_gets_no_blanks_at_the_end_of_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    console.print_table("Title", ("name", "note"), [("a", "a long note"), ("b", "")])
    console.print_table("Plain", ("", ">"), [("a", 1)])
    out = capfd.readouterr().out
    assert out == "Title\nname  note\na     a long note\nb\n\nPlain\na  1\n\n"


def test_a_long_cell_is_folded_not_cut(capfd: pytest.CaptureFixture[str]) -> None:
    console.print_table("Long", ("name", "reason"), [("x" * 200, "y" * 200)])
    out = capfd.readouterr().out
    assert (out.count("x"), out.count("y")) == (200, 200)


def test_a_pipe_gets_no_colour(process: Cli) -> None:
    answer = process("run", "/nowhere")
    assert "\x1b[" not in answer.out + answer.err


@pytest.mark.parametrize(("share", "filled"), [(0.0, 0), (0.5, 4), (1.0, 8), (7.0, 8)])
def test_a_share_is_drawn_as_a_bar(share: float, filled: int) -> None:
    assert console.bar(share, width=8) == "━" * filled + "╌" * (8 - filled)


@pytest.mark.parametrize(
    ("n_bytes", "said"),
    [(0, "0 bytes"), (1536, "1.5 KiB"), (3 << 20, "3.0 MiB"), (5 << 30, "5.0 GiB")],
)
def test_a_size_has_the_unit_that_leaves_a_digit(n_bytes: int, said: str) -> None:
    assert console.size(n_bytes) == said

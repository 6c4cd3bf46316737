"""Results go to standard output, everything else to standard error."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from typing import Any

from rich.console import Console, RenderableType
from rich.status import Status
from rich.table import Table
from rich.text import Text

SCHEMA = 1

_FILE_WIDTH = 200  # columns; nobody's window breaks the lines of a file or a pipe


def print_json(command: str, data: Mapping[str, Any]) -> None:
    """Print the result of a command for programs."""
    text = json.dumps({"schema": SCHEMA, "command": command, **data}, indent=1)
    sys.stdout.write(text + "\n")


def print_text(text: str) -> None:
    """Print one paragraph of a result for people."""
    _show(Text(text))


def print_table(title: str, columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """Print a table for people, if it has any rows.

    Parameters
    ----------
    title : str
        Stands above it.
    columns : sequence of str
        Headings; one that begins with ``>`` has its cells flush right.
    rows : iterable of sequences
        Cells.
    """
    table = Table(pad_edge=False, box=None, show_header=any(each.strip(">") for each in columns))
    for column in columns:
        table.add_column(
            column.removeprefix(">"),
            justify="right" if column.startswith(">") else "left",
            overflow="fold",
        )
    for row in rows:
        table.add_row(*(Text(str(cell)) for cell in row))  # Text: a name may hold "[bold]"
    if table.row_count:
        _show(Text(title, style="bold"), table, "")  # a title of its own: rich folds a table's


def duration(*times_us: float) -> str:
    """Write a time, or the ends of a range, with three digits and the unit of the largest."""
    largest = max(map(abs, times_us))
    unit, factor = next(
        ((unit, factor) for unit, factor in (("s", 1e6), ("ms", 1e3)) if largest >= factor),
        ("µs", 1.0),
    )
    return f"{' – '.join(f'{time_us / factor:.3g}' for time_us in times_us)} {unit}"


def size(n_bytes: int) -> str:
    """Write a size with the unit that leaves at least one digit before the point."""
    for unit, name in ((2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if n_bytes >= unit:
            return f"{n_bytes / unit:.1f} {name}"
    return f"{n_bytes} bytes"


def limit(rtol: float, precision: str) -> str:
    """Write how far apart two results may be, and the type that was computed in."""
    return f"at most {rtol:g} apart ({precision or 'no floats'})"


def bar(share: float, *, width: int = 16) -> str:
    """Draw a share from 0 to 1 as a bar."""
    filled = round(width * min(1.0, max(0.0, share)))
    return "━" * filled + "╌" * (width - filled)


def count(number: int, noun: str) -> str:
    """Write a number with its noun: "1 group", "2 groups", "2 matches"."""
    plural = "" if number == 1 else "es" if noun.endswith("ch") else "s"
    return f"{number} {noun}{plural}"


class Stages:
    """Shows the stage of the work that runs; made by :func:`stages`."""

    def __init__(self, console: Console, status: Status) -> None:
        self._console, self._status = console, status
        self._name, self._start = "", 0.0

    def __call__(self, name: str) -> None:
        """Begin a stage."""
        self.close()
        self._name, self._start = name, time.monotonic()
        self._status.update(name)

    def say(self, text: str) -> None:
        """Say how the stage goes on; only a terminal shows it."""
        self._status.update(f"{self._name}: {text}")

    def close(self) -> None:
        """End the stage."""
        if self._name:
            self._console.print(f"  {self._name}  [dim]{time.monotonic() - self._start:.1f} s[/]")
        self._name = ""


@contextmanager
def stages() -> Iterator[Stages]:
    """Yield what is told the stage of the work that begins, and shows it.

    A terminal gets one line that changes; a log gets a line for each stage, with its
    time. What libraries print meanwhile goes to standard error as well.
    """
    console = Console(stderr=True, highlight=False)
    with _stdout_to_stderr(), console.status("") as status:
        begin = Stages(console, status)
        yield begin
        begin.close()


def _show(*results: RenderableType) -> None:
    console = Console(highlight=False)
    if console.is_terminal:
        console.print(*results)
        return
    if "COLUMNS" not in os.environ:
        console.width = _FILE_WIDTH
    with console.capture() as captured:
        console.print(*results)
    # rich fills each line of a table with blanks, which a file would keep.
    sys.stdout.write("\n".join(line.rstrip() for line in captured.get().split("\n")))


@contextmanager
def _stdout_to_stderr() -> Iterator[None]:
    """Divert what libraries print, in Python or C++: TVM's importer does, and JSON stands alone."""
    sys.stdout.flush()
    kept = os.dup(1)
    os.dup2(2, 1)
    try:
        with redirect_stdout(sys.stderr):
            yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)

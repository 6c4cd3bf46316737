"""Read files of one JSON value a line, whatever has become of their lines."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tvmfuse.errors import StoreError


@dataclass(frozen=True)
class Line:
    """One value of a file, or why there is none.

    Parameters
    ----------
    number : int
        Its line, from 1.
    value : object
        The value; None where there is a fault.
    fault : str
        What is wrong, or "".
    """

    number: int
    value: Any = None
    fault: str = ""


def read_lines(path: Path) -> Iterator[Line]:
    """Yield the values of a file, and a fault for each line or part of one that has none.

    A write that was cut short leaves a torn line, one that was interleaved glues two lines
    together, and a power cut leaves zeros or nothing.

    Raises
    ------
    StoreError
        The file cannot be read.
    """
    try:
        with path.open("rb") as file:
            for number, raw in enumerate(file, 1):
                yield from _values(number, raw.decode("utf-8", "replace").strip("\0 \t\r\n"))
    except OSError as error:
        raise StoreError(f"store: {path} cannot be read: {error.strerror}") from error


def _values(number: int, text: str) -> Iterator[Line]:
    if not text:
        yield Line(number, fault="is blank")
        return
    decoder = json.JSONDecoder()
    values, at = [], 0
    while at < len(text):
        try:
            value, at = decoder.raw_decode(text, at)
        except (ValueError, RecursionError):
            yield Line(number, fault=f"is torn at character {at + 1}: {text[at : at + 40]!r}")
            break
        values.append(value)
        at += len(text) - at - len(text[at:].lstrip())
    if len(values) > 1:
        yield Line(number, fault=f"holds {len(values)} values glued together; all were read")
    yield from (Line(number, value) for value in values)

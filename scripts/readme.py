"""Put measured tables and the transcript of ``make run`` into README and docs/results.md.

Numbers there are never typed: each block between ``<!-- begin NAME -->`` and
``<!-- end NAME -->`` is what a script wrote into ``scripts/bench/results/NAME.md``.
``<!-- begin NAME, folded: TITLE -->`` puts what is long in it behind a line to click on
(``TITLE; TITLE`` where there are several),
``<!-- begin NAME, short -->`` leaves that out::

    python scripts/readme.py            # rewrite both pages
    python scripts/readme.py --check    # exit with 1 where they are not up to date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path

import speed_summary

ROOT = Path(__file__).parent.parent
PAGES = (ROOT / "README.md", ROOT / "docs" / "results.md")
RESULTS = ROOT / "scripts" / "bench" / "results"
LONG = 9  # lines of a table, a list or a text that a page shows without being asked
_BLOCK = re.compile(r"(<!-- begin (\w+)(?:, (.*?))? -->\n).*?(<!-- end \2 -->)", re.DOTALL)
_DETAILS = re.compile(r"<details>.*?</details>\n", re.DOTALL)
# What is drawn together from the results of several scripts.
_COMPOSED: Mapping[str, Callable[[Path], str]] = {"speed": speed_summary.markdown}


def filled(text: str, results: Path) -> str:
    """Return ``text`` with every block replaced by its file in ``results``."""

    def block(match: re.Match[str]) -> str:
        begin, name, how, end = match.groups()
        content = shown(content_of(name, results), how or "").strip()
        return f"{begin}{content}\n{end}" if content else f"{begin}{end}"

    return _BLOCK.sub(block, text)


def content_of(name: str, results: Path) -> str:
    """Return what stands in a block, whole; "" where it is not measured yet."""
    if name in _COMPOSED:
        return _COMPOSED[name](results)
    file = results / f"{name}.md"
    return file.read_text(encoding="utf-8") if file.is_file() else ""


def shown(content: str, how: str) -> str:
    """Return as much of a block as a page wants: ``""``, ``"short"`` or ``"folded: TITLE"``."""
    if not how:
        return content
    if how == "short":
        content = _DETAILS.sub("", content)
        content = "".join(run for run in runs(content) if run.count("\n") <= LONG)
        return re.sub(r"\n{3,}", "\n\n", content)
    titles = how.removeprefix("folded: ").split("; ")
    text = ""
    for run in runs(content):
        if run.count("\n") > LONG:
            title = titles.pop(0) if len(titles) > 1 else titles[0]
            run = f"<details>\n<summary>{title}</summary>\n\n{run}\n</details>\n"
        text += run
    return text


def runs(content: str) -> Iterator[str]:
    """Yield the tables, lists and fenced texts of a block as one piece each, the rest by lines."""
    is_fenced, kinds = False, []
    lines = content.splitlines(keepends=True)
    for number, text in enumerate(lines):
        is_fence = text.startswith("```")
        if is_fenced or is_fence:
            kind = "text"
        elif text.startswith("|"):
            kind = "table"
        elif text.startswith(("- ", "  ")):
            kind = "list"
        else:
            kind = str(number)
        is_fenced ^= is_fence
        kinds.append(kind)
    for _, run in groupby(zip(kinds, lines, strict=True), key=lambda each: each[0]):
        yield "".join(text for _, text in run)


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite or check the pages; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether they are up to date")
    parser.add_argument("--pages", type=Path, nargs="+", default=PAGES, metavar="FILE")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    is_stale = False
    for page in args.pages:
        text = page.read_text(encoding="utf-8")
        new = filled(text, args.results)
        if not args.check:
            page.write_text(new, encoding="utf-8")
        elif new != text:
            is_stale = True
            print(f"{page}: not what {args.results} says; run python scripts/readme.py")
    return int(is_stale)


if __name__ == "__main__":
    sys.exit(main())

"""What the pages of the project name is there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "docs/patterns.md", "docs/results.md")


def text(page: str) -> str:
    return (ROOT / page).read_text(encoding="utf-8")


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES)
def test_every_link_leads_somewhere(page: str) -> None:
    lost = []
    for link in re.findall(r"\]\(([^)\s]+)\)", text(page)):
        if "://" in link:
            continue
        path, _, anchor = link.partition("#")
        target = (ROOT / page).parent / path if path else ROOT / page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    assert lost == []


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_every_path_that_a_page_names_is_there(page: str) -> None:
    named = re.findall(r"`((?:tvmfuse|tests|scripts|docs|tuning_logs|\.ci)/[\w./-]*)`", text(page))
    assert named
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_parts_of_the_tests_stay_within_their_minutes() -> None:
    minutes = re.findall(r"^\| [^|]+ \| \d+ \| ([\d.]+) \|$", text("CONTRIBUTING.md"), re.MULTILINE)
    assert len(minutes) >= 5
    assert sum(map(float, minutes)) <= 45

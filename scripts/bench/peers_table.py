"""Write what peers.py measured as Markdown: networks down, sides across."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from statistics import geometric_mean
from typing import Any

from sides import METASCHEDULE, OURS, TUNED


def markdown(report: Mapping[str, Any]) -> str:
    """Return the table, and under it versions and causes.

    Parameters
    ----------
    report : Mapping
        What peers.py writes as JSON.
    """
    rows: Sequence[Mapping[str, Any]] = report["rows"]
    titles = {side: about["title"] for side, about in report["sides"].items()}
    networks = list(dict.fromkeys(row["network"] for row in rows))
    found = {(row["network"], row["side"]): row for row in rows}
    causes = [row for row in rows if row["cause"]]
    lines = [
        heading(report),
        "",
        f"| network | {' | '.join(titles.values())} |",
        f"| --- {'| --- ' * len(titles)}|",
    ]
    for network in networks:
        cells = [cell(found[network, side], causes) for side in titles]
        lines.append(f"| {network} | {' | '.join(cells)} |")
    means = [mean([found[network, side] for network in networks]) for side in titles]
    lines.append(f"| geometric mean | {' | '.join(means)} |")
    lines += ["", *footnotes(causes, titles, has_alone=any(row["is_alone"] for row in rows))]
    for side, title in titles.items():
        threads = report["sides"][side]["threads"]
        lines.append(f"- {title}: {versions(side, rows)}. Threads: {threads}.")
        lines += [f"  {text}" for text in reached(side, rows)]
    lines += [f"- {name}: not measured; {why}" for name, why in report["not_measured"].items()]
    if report["left"]:
        lines.append(f"- Not measured, for the run had a limit: {', '.join(report['left'])}.")
    return "\n".join(lines) + "\n"


def heading(report: Mapping[str, Any]) -> str:
    """Say when, where and how it was measured, and how to read a cell."""
    machine = report["machine"]
    before, after = report["load"]
    return (
        f"{report['date']}, {machine['processor']}, {machine['cores']} cores, load average "
        f"{before} before and {after} after; {report['threads']} threads, "
        f"{report['rounds']} rounds, float32 unless the file says otherwise. Milliseconds, "
        "median [quartiles], then how many times as long as tvmfuse takes: above 1 tvmfuse is "
        "faster."
    )


def cell(row: Mapping[str, Any], causes: Sequence[Mapping[str, Any]]) -> str:
    """Return the times of one side on one network, or the number of the cause."""
    if row["cause"]:
        return f"– ({causes.index(row) + 1})"
    low, high = (value / 1e3 for value in row["quartiles_us"])
    digits = 1 if row["median_us"] >= 1e4 else 2
    text = f"{row['median_us'] / 1e3:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"
    star = "\\*" if row["is_alone"] else ""
    return text + star + (f" {row['ratio']:.2f}×" if row["side"] != OURS and row["ratio"] else "")


def mean(rows: Sequence[Mapping[str, Any]]) -> str:
    """Return the geometric mean of one side's ratios, and of how many when not of all."""
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    if not ratios:
        return "–"
    part = "" if len(ratios) == len(rows) else f" ({len(ratios)} of {len(rows)})"
    return f"{geometric_mean(ratios):.2f}×{part}"


def footnotes(
    causes: Sequence[Mapping[str, Any]], titles: Mapping[str, str], *, has_alone: bool
) -> list[str]:
    """Explain the numbers and the stars in the cells."""
    notes = [
        f"({number}) {titles[row['side']]}, {row['network']}: "
        f"{textwrap.shorten(row['cause'], 240, placeholder=' …')}\n"
        for number, row in enumerate(causes, 1)
    ]
    star = "\\* too slow to take turns: a few calls, timed alone just before.\n"
    return [*notes, *([star] if has_alone else [])]


def versions(side: str, rows: Sequence[Mapping[str, Any]]) -> str:
    """Return what a side says that it is."""
    said = dict.fromkeys(row["version"] for row in rows if row["side"] == side)
    return "; ".join(version for version in said if version) or "not loaded"


def reached(side: str, rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say how far tuning came on each network, for the sides that are tuned."""
    told = [row for row in rows if row["side"] == side and row["compiled"]]
    if side == TUNED:
        return [
            f"{row['network']}: {row['compiled']['schedules'].get('tuned', 0)} of "
            f"{row['compiled']['kernels']} kernels have records."
            for row in told
        ]
    if side == METASCHEDULE:
        return [f"{row['network']}: {row['compiled']['said']}" for row in told]
    return []

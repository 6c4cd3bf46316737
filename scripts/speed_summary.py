"""How many times as long as tvmfuse its peers take, in one small table."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import geometric_mean
from typing import Any

_OURS = ("tvmfuse", "tuned")


def markdown(results: Path) -> str:
    """Return the table at the top of README.

    Parameters
    ----------
    results : Path
        The folder of ``end_to_end.json`` and ``peers.json``.

    Returns
    -------
    str
        A line for each network that every peer was given, and one for all those that were held
        against ONNX Runtime alone; "" where either is not measured yet.
    """
    files = [results / f"{name}.json" for name in ("end_to_end", "peers")]
    if not all(file.is_file() for file in files):
        return ""
    networks, peers = (json.loads(file.read_text(encoding="utf-8")) for file in files)
    ratios: dict[str, dict[str, float]] = {}
    for row in peers["rows"]:
        if row["side"] not in _OURS and row["ratio"]:
            ratios.setdefault(row["side"], {})[row["network"]] = row["ratio"]
    sides = sorted(ratios, key=lambda side: geometric_mean(ratios[side].values()))
    titles = [peers["sides"][side]["title"] for side in sides]
    given = list(dict.fromkeys(row["network"] for row in peers["rows"]))
    lines = [
        heading(networks, peers),
        "",
        f"| | {' | '.join(titles)} |",
        f"| --- {'| --- ' * len(sides)}|",
        *(line(network, [ratios[side].get(network) for side in sides]) for network in given),
    ]
    known = [r["ratio"] for r in networks["rows"] if r["side"] == "onnxruntime" and r["ratio"]]
    if known:
        mean = [geometric_mean(known) if side == "onnxruntime" else None for side in sides]
        lines.append(line(f"{len(known)} networks, geometric mean", mean))
    return "\n".join(lines) + "\n"


def heading(networks: Mapping[str, Any], peers: Mapping[str, Any]) -> str:
    """Say when and where it was measured, and how to read it."""
    dates = dict.fromkeys(report["date"] for report in (peers, networks))
    machines = dict.fromkeys(report["machine"]["processor"] for report in (peers, networks))
    return (
        f"{' and '.join(dates)}, {' and '.join(machines)}, {peers['threads']} threads, batch 1, "
        "without tuning: how many times as long as tvmfuse each takes. Above 1 tvmfuse is faster."
    )


def line(name: str, ratios: Sequence[float | None]) -> str:
    """Return one line of the table."""
    cells = ("" if ratio is None else f"{ratio:.{2 if ratio < 100 else 0}f}×" for ratio in ratios)
    return f"| {name} | {' | '.join(cells)} |"

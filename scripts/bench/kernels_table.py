"""Write what single_kernels.py measured as Markdown: what was to be reached, then every kernel."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from statistics import geometric_mean
from typing import Any

from sides import OURS, REFERENCE

Row = Mapping[str, Any]
# What each class must reach: of the limit, of ONNX Runtime's speed (mean, worst), of the best
# peer's, of scaled_dot_product_attention's.
PEAK, BANDWIDTH = 0.85, 0.90
CONV_MEAN, CONV_WORST = 1.1, 0.9
GROUPS = {
    "matmul": "matmul + bias + GELU",
    "memory": "memory-bound, 64 MiB",
    "conv": "convolutions of ResNet-50, depthwise of MobileNetV2",
    "attention": "attention",
}


def markdown(report: Mapping[str, Any]) -> str:
    """Return the summary, and every kernel in a part that unfolds.

    Parameters
    ----------
    report : Mapping
        What single_kernels.py writes as JSON.
    """
    kernels: dict[str, dict[str, Row]] = {}
    for row in report["rows"]:
        kernels.setdefault(row["network"], {})[row["side"]] = row
    titles = {side: about["title"] for side, about in report["sides"].items()}
    lines = [heading(report), "", *summary(kernels), "", "<details>"]
    lines += [f"<summary>All {len(kernels)} kernels</summary>", "", *details(kernels, titles)]
    lines += ["", "</details>", ""]
    for side, title in titles.items():
        said = [row[side]["version"] for row in kernels.values() if side in row]
        versions = dict.fromkeys(text.partition(",")[0] for text in said if text)
        lines.append(f"- {title}: {'; '.join(versions) or 'not loaded'}.")
    lines += [f"- {title}: {why}" for title, why in report["missing"].items()]
    if report["left"]:
        lines.append(f"- Not measured, for the run had a limit: {', '.join(report['left'])}.")
    return "\n".join(lines) + "\n"


def heading(report: Mapping[str, Any]) -> str:
    """Say when, where and how it was measured."""
    machine, peaks = report["machine"], report["peaks"]
    before, after = report["load"]
    return (
        f"{report['date']}, {machine['processor']}, {machine['cores']} cores, load average "
        f"{before} before and {after} after; {report['threads']} threads, {report['rounds']} "
        f"rounds, float32, zero trials. Peak {peaks['gflops']:.0f} GFLOP/s, STREAM's triad "
        f"{peaks['triad_gbps']:.0f} GB/s (measured again beside each kernel that memory bounds). "
        "Medians [quartiles], then how many times as long as tvmfuse takes. PyTorch's attention is "
        "`scaled_dot_product_attention` as it is, not compiled."
    )


def summary(kernels: Mapping[str, Mapping[str, Row]]) -> list[str]:
    """Return one line for each thing that had to be reached."""
    lines = [
        "| work | must reach | geometric mean | worst | reached |",
        "| --- | --- | --- | --- | --- |",
    ]
    for group, title in GROUPS.items():
        chosen = {
            name: rows
            for name, rows in kernels.items()
            if rows[OURS]["group"] == group and not rows[OURS]["cause"]
        }
        for must, found, least_mean, least in goals(group, chosen):
            if not found:
                continue
            mean, worst = geometric_mean(found.values()), min(found, key=lambda name: found[name])
            is_reached = mean >= least_mean and found[worst] >= least
            lines.append(
                f"| {title} | {must} | {mean:.2f} | {found[worst]:.2f} "
                f"({kernels[worst][OURS]['title']}) | {'yes' if is_reached else '**no**'} |"
            )
    return lines


def goals(
    group: str, kernels: Mapping[str, Mapping[str, Row]]
) -> list[tuple[str, dict[str, float], float, float]]:
    """Return what a class must reach, what each kernel has, and the least mean and worst."""
    of_limit = {
        name: rows[OURS]["limit_us"] / rows[OURS]["median_us"] for name, rows in kernels.items()
    }

    def faster_than(side: str) -> dict[str, float]:
        return {
            name: rows[side]["ratio"]
            for name, rows in kernels.items()
            if side in rows and rows[side]["ratio"]
        }

    best = {
        name: min(row["ratio"] for side, row in rows.items() if side != OURS and row["ratio"])
        for name, rows in kernels.items()
    }
    match group:
        case "matmul":
            return [
                (f"{PEAK:.0%} of peak", of_limit, PEAK, PEAK),
                ("1.00× the best peer's speed", best, 1.0, 1.0),
            ]
        case "memory":
            return [(f"{BANDWIDTH:.0%} of the triad's bandwidth", of_limit, BANDWIDTH, BANDWIDTH)]
        case "conv":
            must = f"{CONV_MEAN}× ONNX Runtime's speed, none under {CONV_WORST}×"
            return [(must, faster_than(REFERENCE), CONV_MEAN, CONV_WORST)]
        case _:
            must = "1.00× the speed of scaled_dot_product_attention"
            return [(must, faster_than("torch"), 1.0, 1.0)]


def details(kernels: Mapping[str, Mapping[str, Row]], titles: Mapping[str, str]) -> list[str]:
    """Return a line for each kernel, its peers' times with how many times ours they are."""
    causes: list[str] = []
    lines = [
        f"| kernel | limit, µs | of it | {' | '.join(f'{name}, µs' for name in titles.values())} |",
        f"| --- | --- | --- {'| --- ' * len(titles)}|",
    ]
    for rows in kernels.values():
        ours = rows[OURS]
        limit = f"{ours['limit_us'] / ours['median_us']:.0%}" if not ours["cause"] else "–"
        cells = [cell(rows[side], titles[side], causes) if side in rows else "–" for side in titles]
        lines.append(
            f"| {ours['title']} | {ours['limit_us']:.4g} | {limit} | {' | '.join(cells)} |"
        )
    return [*lines, *(["", *causes] if causes else [])]


def cell(row: Row, title: str, causes: list[str]) -> str:
    """Return a side's median, quartiles and ratio, or the number of what is wrong."""
    if row["cause"]:
        short = textwrap.shorten(row["cause"], 200, placeholder=" …")
        causes.append(f"({len(causes) + 1}) {title}, {row['title']}: {short}\n")
        return f"– ({len(causes)})"
    low, high = row["quartiles_us"]
    text = f"{number(row['median_us'])} [{number(low)}, {number(high)}]"
    return text if row["side"] == OURS or not row["ratio"] else f"{text} {row['ratio']:.2f}×"


def number(us: float) -> str:
    """Return microseconds with three digits or more."""
    return f"{us:.0f}" if us >= 100 else f"{us:.3g}"

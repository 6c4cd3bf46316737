r"""How fast tuning gets there: beside an exhaustive search, and beside TVM's own tuner.

    export PYTHONPATH=. TVM_NUM_THREADS=2
    python scripts/bench/tuning_curve.py kernels --models models/bench --prepare  # may be busy
    python scripts/bench/tuning_curve.py kernels --models models/bench   # 6 minutes
    python scripts/bench/tuning_curve.py replay           # the same tables, by today's search
    python scripts/bench/tuning_curve.py model models/bench/resnet18.onnx --seconds 540 --ours 180 \
        --python .venv-peers/metaschedule/bin/python                     # 14 minutes
    python scripts/bench/tuning_curve.py show                            # the plot and the table

Each part may be interrupted, and goes on with what was measured. Writes
``results/tuning_curve.json``, ``.svg`` and ``.md``, which README shows.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from statistics import median
from typing import Any

from chart import Line, Panel, svg
from tuning_models import ours, stock
from tuning_tables import Kept, Measured, build, chosen, measure, summary

from tvmfuse import files
from tvmfuse._tvm.threads import in_use
from tvmfuse.host import detect

RESULTS = Path(__file__).parent / "results"
TABLES = "tuning_tables.json"
MODELS = {"resnet18": 4, "mobilenetv2": 3, "bert_base": 3}  # kernels of each, ten in all
_STEPS = 60
_SAME = 0.97  # the luckiest of so many points seems better by about as much


def run_kernels(args: argparse.Namespace) -> None:
    """Measure the tables of ten kernels and search in them."""
    models = [args.models / f"{name}.onnx" for name in MODELS]
    kernels = chosen(models, list(MODELS.values()))
    if args.prepare:
        build(kernels, args.libraries, limit=args.limit)
        return
    found = measure(kernels, args.db, args.libraries, limit=args.limit)
    tables = [kept.to_json() for kept in found]
    files.write_text(args.into / TABLES, json.dumps({"on": _machine(), "kernels": tables}) + "\n")
    run_replay(args)


def run_replay(args: argparse.Namespace) -> None:
    """Search in the tables that were measured before."""
    tables = json.loads((args.into / TABLES).read_text(encoding="utf-8"))
    found = [asdict(summary(Kept.from_json(each))) for each in tables["kernels"]]
    _keep(args.into, {"kernels": found, "kernels_on": tables["on"]})


def run_model(args: argparse.Namespace) -> None:
    """Tune a model both ways."""
    seconds = args.ours or args.seconds
    same = {"model": args.model.stem, "asked_s": [seconds, args.seconds]}
    known = _known(args.into)
    if any(known.get(name) != value for name, value in same.items()) or args.again:
        found = ours(args.model, seconds=seconds)
        _keep(args.into, {**same, "model_on": _machine(), "ours": found, "stock": []})
    if args.python:
        how = {"seconds": args.seconds, "looks": args.looks, "threads": in_use()}
        found = stock(args.model, args.scratch, python=args.python, **how)
        _keep(args.into, {"stock": found})


def show(args: argparse.Namespace) -> None:
    """Draw the plot and write the text."""
    known = _known(args.into)
    panels = []
    if "kernels" in known:
        panels.append(kernels_panel([Measured(**each) for each in known["kernels"]]))
    if "ours" in known:
        panels.append(model_panel(known))
    (args.into / "tuning_curve.svg").write_text(svg(panels), encoding="utf-8")
    (args.into / "tuning_curve.md").write_text(text(known), encoding="utf-8")
    print(text(known))


def kernels_panel(kernels: list[Measured]) -> Panel:
    """Return the share of the exhaustive search's gain over the share of its trials."""
    lines = []
    for number, kernel in enumerate(kernels):
        if _has_gain(kernel):
            trials = sorted({max(1, kernel.points * step // _STEPS) for step in range(_STEPS // 2)})
            points = [(100 * n / kernel.points, 100 * kernel.gain(n)) for n in trials]
            lines.append(Line("", points, number))
    title = f"{len(kernels)} kernels: share of the gain of an exhaustive search"
    return Panel(title, "% of its trials", "% of its gain (median of 10 seeds)", lines)


def model_panel(known: Mapping[str, Any]) -> Panel:
    """Return the time of a whole model over the time of tuning."""
    mine = known["ours"]
    # What was estimated on the way began at another measurement of the default.
    begun_us = mine["estimates"][0][2] if mine["estimates"] else 1.0
    factor = (mine["default_us"] or begun_us) / begun_us
    points = [(s, factor * time_us / 1e3) for s, _, time_us in mine["estimates"]]
    first = [(mine["first_trial_s"], mine["default_us"] / 1e3)] if mine["default_us"] else []
    last = [(mine["seconds"], mine["tuned_us"] / 1e3)] if mine["tuned_us"] else []
    lines = [Line("tvmfuse", [*first, *points, *last], 0)]
    theirs = known.get("stock", [])
    if theirs:
        line = [(each["seconds"], each["model_us"] / 1e3) for each in theirs]
        lines.append(Line("MetaSchedule, stock", line, 1))
    x, y = "seconds of tuning", "ms of one inference"
    return Panel(f"{known['model']}: one inference", x, y, lines, is_log_x=True, is_log_y=True)


def text(known: Mapping[str, Any]) -> str:
    """Return the text for README."""
    parts = ["![What tuning reaches, and when](scripts/bench/results/tuning_curve.svg)", ""]
    if "kernels" in known:
        kernels = [Measured(**each) for each in known["kernels"]]
        parts += [
            f"{known['kernels_on']}. {_kernels_text(kernels)}",
            "",
            *_kernels_table(kernels),
            "",
        ]
    if "ours" in known:
        parts.append(f"{known['model_on']}. {_model_text(known)}")
    return "\n".join(parts) + "\n"


def _kernels_text(kernels: list[Measured]) -> str:
    others = [kernel for kernel in kernels if _has_gain(kernel)]
    said = (
        f"On {len(kernels) - len(others)} of {len(kernels)} kernels the default is within "
        f"{100 * (1 - _SAME):.0f} % of the best point that an exhaustive search finds. "
    )
    if not others:
        return said
    tenths = [kernel.gain(max(1, kernel.points // 10)) for kernel in others]
    return said + (
        f"After a tenth of its trials, ours has 95 % of its gain on "
        f"{sum(gain >= 0.95 for gain in tenths)} of the other {len(others)} (median of 10 seeds; "
        f"{median(tenths):.0%} in the middle of them). Left: these others."
    )


def _has_gain(kernel: Measured) -> bool:
    """Whether the best of a kernel's points is better than its default beyond chance."""
    return kernel.best_us < _SAME * kernel.default_us


def _kernels_table(kernels: list[Measured]) -> list[str]:
    lines = [
        "| kernel | points | default, µs | best, µs | gain after 1/20 of the trials | 1/10 | 1/5 |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    for kernel in kernels:
        gains = (kernel.gain(max(1, kernel.points // part)) for part in (20, 10, 5))
        cells = [f"{gain:.0%}" for gain in gains]
        name = f"{kernel.name[:60]} | {kernel.points}"
        times = f"{kernel.default_us:.0f} | {kernel.best_us:.0f}"
        lines.append(f"| {name} | {times} | {' | '.join(cells)} |")
    return lines


def _model_text(known: Mapping[str, Any]) -> str:
    mine, theirs = known["ours"], known.get("stock", [])
    default_ms, tuned_ms = ((mine[name] or 0.0) / 1e3 for name in ("default_us", "tuned_us"))
    said = (
        f"{known['model']} by tvmfuse: {default_ms:.1f} ms with no trial, {tuned_ms:.1f} ms after "
        f"{mine['trials']} trials in {mine['seconds']:.0f} s; the first candidate was measured "
        f"after {mine['first_trial_s']:.1f} s."
    )
    if theirs:
        last = theirs[-1]
        said += (
            f" Stock MetaSchedule (XGBoost cost model, its own rules, workers repaired) was "
            f"stopped after {last['seconds']:.0f} s: {last['records']} records on "
            f"{last['reached']} of {last['tasks']} kernels, {last['model_us'] / 1e3:.0f} ms. "
        )
        hours = last["seconds"] * 1000 / 3600 / last["records"] if last["records"] else 0.0
        said += (
            f"At that rate 1,000 trials take it {hours:.1f} h."
            if hours
            else "It had not measured one candidate by then."
        )
    return said


def _machine() -> str:
    load = os.getloadavg()[0]
    return f"{time.strftime('%Y-%m-%d')}, {detect().model}, {in_use()} threads, load {load:.1f}"


def _known(folder: Path) -> dict[str, Any]:
    path = folder / "tuning_curve.json"
    return dict(json.loads(path.read_text())) if path.exists() else {}


def _keep(folder: Path, found: Mapping[str, Any]) -> None:
    known = {**_known(folder), **found}
    folder.mkdir(parents=True, exist_ok=True)
    files.write_text(folder / "tuning_curve.json", json.dumps(known) + "\n")


def main(argv: list[str] | None = None) -> None:
    """Run one part."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=RESULTS)
    parts = parser.add_subparsers(required=True)
    kernels = parts.add_parser("kernels", help="exhaustive search of ten kernels")
    kernels.add_argument("--models", type=Path, required=True, help="folder of ONNX files")
    kernels.add_argument("--db", type=Path, default=Path("tuning_logs/curve.db"))
    kernels.add_argument("--limit", type=int, default=150, help="points of a kernel at most")
    kernels.add_argument("--libraries", type=Path, default=Path("tuning_logs/curve"))
    kernels.add_argument("--prepare", action="store_true", help="only build the points")
    kernels.set_defaults(run=run_kernels)
    parts.add_parser(
        "replay", help="search again in the tables that 'kernels' measured, which takes no timing"
    ).set_defaults(run=run_replay)
    model = parts.add_parser("model", help="one model, by tvmfuse and by MetaSchedule")
    model.add_argument("model", type=Path)
    model.add_argument("--seconds", type=float, default=540.0, help="for each of the two")
    model.add_argument("--ours", type=float, help="seconds for tvmfuse, where it gets others")
    model.add_argument("--again", action="store_true", help="tune by tvmfuse anew")
    model.add_argument("--looks", type=int, default=2, help="at MetaSchedule's records")
    model.add_argument("--python", type=Path, help="interpreter of MetaSchedule's environment")
    model.add_argument("--scratch", type=Path, default=Path("tuning_logs/curve"))
    model.set_defaults(run=run_model)
    parts.add_parser("show", help="draw and write").set_defaults(run=show)
    args = parser.parse_args(argv)
    args.run(args)


if __name__ == "__main__":
    main()

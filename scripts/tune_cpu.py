"""Tune models on the CPU of this machine, one after the other.

    python scripts/tune_cpu.py MODEL... [--time 5m] [--trials N] [--until-within 5%] [--resume]

Every option of ``tvmfuse tune`` may follow the models, and holds for each of them. It may be
interrupted at any moment, and goes on with ``--resume``. What was found is kept in the store
that ``--db`` or TVMFUSE_DB names, else in ``tuning_logs/``; ``tvmfuse compile`` uses it.

With ``--report DIR`` what came of each model is also written to ``DIR/tuned.json`` and, as a
table, to ``DIR/tuned.md``. With ``--resume`` models whose search is finished there are left out,
unless ``--again`` asks for them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmfuse import files
from tvmfuse.tuning.reports import A_LITTLE, BEST, FASTER, MARK, OPEN

_REPORT, _AGAIN = "--report", "--again"


def main(arguments: list[str]) -> int:
    """Tune each model; return the first exit code that is not 0."""
    n_models = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    models, options = arguments[:n_models], arguments[n_models:]
    if not models or options[-1:] == [_REPORT]:
        print(__doc__, file=sys.stderr)
        return 2
    folder = None
    if _REPORT in options:
        place = options.index(_REPORT)
        folder = Path(options[place + 1])
        options[place : place + 2] = ["--json"]
    known = _known(folder) if "--resume" in options else {}
    is_again = _AGAIN in options
    options = [option for option in options if option != _AGAIN]
    for model in models:
        name = Path(model).stem
        if name in known and known[name]["outcome"] != OPEN and not is_again:
            continue
        print(f"== {model}", file=sys.stderr, flush=True)
        try:
            done = _tune(model, options, is_read=folder is not None)
        except KeyboardInterrupt:
            return 130  # the command has said what was kept
        if done.returncode:
            return done.returncode
        if folder is not None:
            known[name] = {**json.loads(done.stdout), **_circumstances()}
            _write(known, folder)
    return 0


def _tune(model: str, options: Sequence[str], *, is_read: bool) -> subprocess.CompletedProcess[str]:
    command = (sys.executable, "-m", "tvmfuse", "tune", "--target", "cpu", model, *options)
    output = subprocess.PIPE if is_read else None
    return subprocess.run(command, check=False, stdout=output, text=True)


def table(reports: Mapping[str, Mapping[str, Any]]) -> str:
    """Return what came of tuning some models as Markdown."""
    days = sorted({each["date"] for each in reports.values()})
    first = next(iter(reports.values()))
    loads = [each["load"] for each in reports.values()]
    counts = Counter(each["outcome"] for each in reports.values())
    reached = counts[FASTER] + counts[BEST]
    lines = [
        f"{' to '.join(dict.fromkeys((days[0], days[-1])))}, {first['processor']}, "
        f"{first['target']}, load average {min(loads)} to {max(loads)}. **{reached} of "
        f"{len(reports)} networks** are {MARK}× as fast as with no trial, or their default was "
        f"best already; {counts[A_LITTLE]} are a little faster, of {counts[OPEN]} the search is "
        "not finished.",
        "",
        "| network | no trial, ms | tuned, ms | times as fast | outcome | searched | "
        "kernels changed | trials | s |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
        *(_row(name, each) for name, each in reports.items()),
        "",
        f"*{FASTER}*: {MARK}× or more. *{A_LITTLE}*: less, and no more was found. *{BEST}*: no "
        "candidate that was faster alone made the network faster. *"
        f"{OPEN}*: there was no time to try a faster kernel in the network, or too many kernels "
        "had fewer than 12 candidates tried; `--resume` goes on. *searched*: the share of the "
        "kernels' time that had so many, or all that there are.",
    ]
    return "\n".join(lines) + "\n"


def _row(name: str, report: Mapping[str, Any]) -> str:
    kept = [kernel for kernel in report["kernels"] if kernel["is_kept"]]
    tuned_us = report["tuned_us"] if kept else report["default_us"]
    cells = (
        name,
        _ms(report["default_us"]),
        _ms(tuned_us),
        f"{report['gain']:.2f}",
        report["outcome"],
        f"{report['searched']:.0%}",
        f"{len(kept)} of {len(report['kernels'])}",
        report["trials"],
        f"{report['seconds']:.0f}",
    )
    return f"| {' | '.join(map(str, cells))} |"


def _ms(time_us: float | None) -> str:
    return "not timed" if time_us is None else f"{time_us / 1e3:.2f}"


def _circumstances() -> dict[str, Any]:
    from tvmfuse.host import detect

    load = round(os.getloadavg()[0], 1)
    return {"date": time.strftime("%Y-%m-%d"), "processor": detect().model, "load": load}


def _known(folder: Path | None) -> dict[str, Any]:
    path = None if folder is None else folder / "tuned.json"
    return dict(json.loads(path.read_text())) if path is not None and path.exists() else {}


def _write(reports: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    files.write_text(folder / "tuned.json", json.dumps(reports, indent=1) + "\n")
    (folder / "tuned.md").write_text(table(reports), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

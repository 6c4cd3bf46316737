"""Tune models on the CPU of this machine, one after the other.

    python scripts/tune_cpu.py MODEL... [--time 5m] [--trials N] [--until-within 5%] [--resume]

Every option of ``tvmfuse tune`` may follow the models, and holds for each of them. It may be
interrupted at any moment, and goes on with ``--resume``. What was found is kept in the store
that ``--db`` or TVMFUSE_DB names, else in ``tuning_logs/``; ``tvmfuse compile`` uses it.

With ``--report DIR`` what came of each model is also written to ``DIR/tuned.json`` and, as a
table, to ``DIR/tuned.md``. With ``--resume`` models that stand there already are left out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tvmfuse import files

_MARK = 1.05  # times as fast as by default, unless the default was best already
_BEST = "default was best already"
_REPORT = "--report"


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
    for model in models:
        name = Path(model).stem
        if name in known:
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
    reached = [name for name, each in reports.items() if _is_reached(each)]
    days = sorted({each["date"] for each in reports.values()})
    first = next(iter(reports.values()))
    loads = [each["load"] for each in reports.values()]
    lines = [
        f"{days[0]} to {days[-1]}, {first['processor']}, {first['target']}, load average "
        f"{min(loads)} to {max(loads)}. **{len(reached)} of {len(reports)} networks** are "
        f"{_MARK}× as fast as with no trial, or their default was best already: no candidate "
        "that was faster alone made the network faster.",
        "",
        "| network | no trial, ms | tuned, ms | times as fast | kernels changed | trials | s |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    lines += [_row(name, each) for name, each in reports.items()]
    return "\n".join(lines) + "\n"


def _row(name: str, report: Mapping[str, Any]) -> str:
    kept = [kernel for kernel in report["kernels"] if kernel["is_kept"]]
    default, tuned = (_ms(report[which]) for which in ("default_us", "tuned_us"))
    if kept:
        gain = f"{report['gain']:.2f}"
    else:
        tuned = default
        gain = _why_none(report)
    counts = f"{len(kept)} of {len(report['kernels'])} | {report['trials']}"
    return f"| {name} | {default} | {tuned} | {gain} | {counts} | {report['seconds']:.0f} |"


def _is_reached(report: Mapping[str, Any]) -> bool:
    is_changed = any(kernel["is_kept"] for kernel in report["kernels"])
    return report["gain"] >= _MARK if is_changed else _why_none(report) == _BEST


def _why_none(report: Mapping[str, Any]) -> str:
    n_untried = len(report["untried"])
    if n_untried:
        return f"no time left to try {n_untried}"
    n_unsearched = sum(not kernel["is_searched"] for kernel in report["kernels"])
    return f"too few trials of {n_unsearched}" if n_unsearched else _BEST


def _ms(time_us: float | None) -> str:
    return "" if time_us is None else f"{time_us / 1e3:.2f}"


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

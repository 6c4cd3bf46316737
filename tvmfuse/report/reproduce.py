"""Compile the group of operators in this folder twice, by plain TVM and fused, and compare.

``tvmfuse bisect -o FOLDER`` copies this file into the folder that it writes: run it there.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import numpy as np
import tvm
from tvm import relax

from tvmfuse import Session, import_model, target
from tvmfuse._pipeline import Options, build
from tvmfuse.patterns.plugins import from_file
from tvmfuse.patterns.registry import Registry, default
from tvmfuse.report.contract import AlwaysFuse


def main(folder: Path) -> int:
    """Print how far the fused group is from plain TVM; return 1 where it is too far."""
    case = json.loads((folder / "case.json").read_text(encoding="utf-8"))
    module = tvm.ir.load_json((folder / "module.json").read_text(encoding="utf-8"))
    arrays = np.load(folder / "inputs.npz")
    feeds = {name: arrays[name] for name in case["inputs"]}
    worst = 0.0
    for found, wanted in zip(fused(folder, module, case, feeds), plain(module, feeds), strict=True):
        found, wanted = found.astype("float64"), wanted.astype("float64")
        error = float(np.abs(found - wanted).max() / (np.abs(wanted).max() or 1.0))
        worst = error if np.isnan(error) else max(worst, error)
    print(f"max|fused - plain| / max|plain| = {worst:.3g}, at most {case['rtol']:g}")  # noqa: T201
    return int(not worst <= case["rtol"])


def plain(module: Any, feeds: dict[str, Any]) -> list[Any]:
    """Return what TVM computes without fusion and without schedules."""
    executable = tvm.compile(module, tvm.target.Target("llvm"))
    machine = relax.VirtualMachine(executable, tvm.cpu())
    result = machine["main"](*map(tvm.runtime.tensor, feeds.values()))
    return [each.numpy() for each in ([result] if hasattr(result, "numpy") else result)]


def fused(folder: Path, module: Any, case: dict[str, Any], feeds: dict[str, Any]) -> list[Any]:
    """Return what the fused kernel computes."""
    added = [
        pattern for path in sorted(folder.glob("patterns_*.py")) for pattern in from_file(path)
    ]
    patterns = [p for p in (*added, *default().patterns) if p.name == case["pattern"]]
    options = Options(registry=Registry(tuple(patterns)), cost_model=AlwaysFuse())
    compiled = build(import_model(module), target(case["target"]), options=options)
    groups = [f"{g.candidate.label} [{g.candidate.pattern}]" for g in compiled.plan.groups]
    print("fused:", ", ".join(groups) or "nothing")  # noqa: T201
    return Session.of(compiled).run(None, feeds)


if __name__ == "__main__":
    sys.exit(main(Path(__file__).parent))

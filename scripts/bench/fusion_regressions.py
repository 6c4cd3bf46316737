"""Time our plans beside TVM's default fusion and no fusion, with the same schedules.

Each model is compiled by our planner, by TVM's choice from the same candidates
(``--planner fuse-ops``) and without fusion; the three take turns in one process. Where
weights come to lie is worth several percent, for as long as the process lives: so there
are several processes, each builds the three in another order, and the interval is drawn
over processes as well. Two slow-downs that TVM's users reported are cases of their own.
What is measured already is kept: run it again to go on::

    python scripts/bench/fusion_regressions.py --models models --exported models/bench
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from coverage_table import Entry, StepError, read_entries, run_json, sample_all
from onnx import TensorProto, helper, numpy_helper

from tvmfuse import files
from tvmfuse.host import detect

HERE = Path(__file__).parent
STRATEGIES = ("optimal", "fuse-ops", "none")
WORST = 0.98


@dataclass(frozen=True)
class Row:
    """The times of one model.

    Parameters
    ----------
    name : str
        The model's name.
    rounds_us : Mapping of str to list of list of float
        By planner, for each process the median time of a call in each round, in µs.
    alike : list of str
        The planners that choose the same kernels as ours: they have no time of their own.
    cause : str
        Why there are none.
    """

    name: str
    rounds_us: Mapping[str, Sequence[Sequence[float]]]
    alike: Sequence[str] = ()
    cause: str = ""

    def ratio(self, other: str) -> tuple[float, float, float]:
        """Return another planner's time over ours: median, and its 95 % interval.

        The interval is that of a bootstrap of two steps: processes, then rounds in each.
        """
        pairs = np.array(self.rounds_us[other]) / np.array(self.rounds_us["optimal"])
        processes, rounds = pairs.shape
        rng = np.random.default_rng(0)
        drawn = pairs[rng.integers(processes, size=(2000, processes))]
        at = rng.integers(rounds, size=drawn.shape)
        medians = np.median(np.take_along_axis(drawn, at, axis=2), axis=(1, 2))
        low, high = np.quantile(medians, (0.025, 0.975))
        return float(np.median(pairs)), float(low), float(high)

    def is_slower(self, other: str) -> bool:
        """Tell whether our plan is slower, by more than 2 % and the noise."""
        if other in self.alike:
            return False
        median, _, high = self.ratio(other)
        return median < WORST and high < 1.0


def max_pool_add() -> onnx.ModelProto:
    """Return apache/tvm#20401: pooling recomputed for every element of a sum."""
    nodes = [
        helper.make_node(
            "MaxPool", ["x"], ["p"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]
        ),
        helper.make_node("Add", ["p", "r"], ["y"]),
    ]
    shapes = {"x": (1, 64, 112, 112), "r": (1, 64, 56, 56)}
    return _model(nodes, shapes, (1, 64, 56, 56), TensorProto.FLOAT)


def exp_chain() -> onnx.ModelProto:
    """Return apache/tvm#20342: a chain on one column, repeated for every column it meets."""
    nodes, z = [], "x"
    for i in range(8):
        nodes += [
            helper.make_node("Mul", [z, "half"], [f"h{i}"]),
            helper.make_node("Sub", ["x", f"h{i}"], [f"d{i}"]),
            helper.make_node("Exp", [f"d{i}"], [f"z{i}"]),
        ]
        z = f"z{i}"
    nodes.append(helper.make_node("Add", ["b", z], ["y"]))
    half = numpy_helper.from_array(np.array(0.5, "float16"), "half")
    shapes = {"x": (4096, 1), "b": (4096, 4096)}
    return _model(nodes, shapes, (4096, 4096), TensorProto.FLOAT16, half)


CASES: Mapping[str, Callable[[], onnx.ModelProto]] = {
    "max_pool_add": max_pool_add,
    "exp_chain_fp16": exp_chain,
}


def _model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    output: Sequence[int],
    kind: int,
    *weights: onnx.TensorProto,
) -> onnx.ModelProto:
    graph = helper.make_graph(
        nodes,
        "case",
        [helper.make_tensor_value_info(name, kind, shape) for name, shape in inputs.items()],
        [helper.make_tensor_value_info("y", kind, output)],
        list(weights),
    )
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


def time_one(
    path: Path, shapes: Mapping[str, Sequence[int]], order: Sequence[str], rounds: int
) -> dict[str, Any]:
    """Compile one model in every way and time them in turns, in this process."""
    from tvmfuse import _pipeline
    from tvmfuse.calibrate import calibrated
    from tvmfuse.frontend import import_model
    from tvmfuse.planner import strategy
    from tvmfuse.runtime import Session
    from tvmfuse.runtime.samples import random_inputs
    from tvmfuse.runtime.timing import measure
    from tvmfuse.targets import resolve

    target = calibrated(resolve("cpu"))
    bound = {name: tuple(shape) for name, shape in shapes.items()}
    model = import_model(path, shapes=bound)
    built = {
        name: _pipeline.build(model, target, options=_pipeline.Options(strategy=strategy(name)))
        for name in order
    }
    kernels = {name: [k.name for k in found.kernels] for name, found in built.items()}
    sessions = {name: Session.of(found) for name, found in built.items()}
    feeds = random_inputs(model.signature.inputs)
    rounds_us: dict[str, list[float]] = {name: [] for name in order}
    for number in range(rounds):
        for name in order[:: 1 if number % 2 == 0 else -1]:
            timing = measure(
                lambda name=name: sessions[name].run(None, feeds), rounds=1, round_us=30e3
            )
            rounds_us[name].append(timing.median_us)
    alike = [name for name in order if name != "optimal" and kernels[name] == kernels["optimal"]]
    return {"rounds_us": rounds_us, "alike": sorted(alike)}


def examine(entry: Entry, *, processes: int, rounds: int, limit_s: float) -> Row:
    """Time one model in processes of its own."""
    graph = onnx.load(entry.path, load_external_data=False).graph
    open_inputs = {
        value.name
        for value in graph.input
        if any(not dim.dim_value for dim in value.type.tensor_type.shape.dim)
    }
    shapes = {n: list(a.shape) for n, a in sample_all(entry).items() if n in open_inputs}
    given = {"path": str(entry.path), "shapes": shapes, "rounds": rounds}
    found = []
    for number in range(processes):
        turn = number % len(STRATEGIES)
        given["order"] = [*STRATEGIES[turn:], *STRATEGIES[:turn]]
        try:
            found.append(run_json([__file__, "--one", json.dumps(given)], limit_s=limit_s))
        except StepError as step:
            return Row(entry.name, {}, cause=step.cause)
    rounds_us = {name: [each["rounds_us"][name] for each in found] for name in STRATEGIES}
    return Row(entry.name, rounds_us, found[0]["alike"])


def markdown(rows: Sequence[Row]) -> str:
    """Return the table as it stands in README."""
    timed = [row for row in rows if row.rounds_us]
    slower = [row.name for row in timed if row.is_slower("fuse-ops") or row.is_slower("none")]
    verdict = f"Slower: {', '.join(slower)}." if slower else "None is slower."
    threads = os.environ.get("TVM_NUM_THREADS", str(detect().cores))
    lines = [
        f"{date.today()}, {detect().model}, {threads} threads; times of TVM's choice and of no "
        f"fusion over ours, with the same schedules, in turns: above 1 ours is faster. "
        f"{len(timed)} models, {_processes(timed)} processes for each. {verdict}",
        "",
        "| model | ours, ms | TVM's choice | 95 % | no fusion | 95 % |",
        "| --- | --- | --- | --- | --- | --- |",
    ]
    for row in timed:
        cells = [f"{np.median(row.rounds_us['optimal']) / 1e3:.3g}"]
        for other in ("fuse-ops", "none"):
            median, low, high = row.ratio(other)
            same = ["the same", "kernels"]
            cells += same if other in row.alike else [f"{median:.2f}×", f"{low:.2f} – {high:.2f}"]
        lines.append(f"| {row.name} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _processes(rows: Sequence[Row]) -> int:
    return min((len(row.rounds_us["optimal"]) for row in rows), default=0)


def entries(args: argparse.Namespace, folder: Path) -> list[Entry]:
    """Write the cases into a folder; return them, then the models that are there."""
    found = []
    for name, build in CASES.items():
        path = folder / f"{name}.onnx"
        onnx.save(build(), path)
        found.append(Entry(name, path, {}))
    if args.models is not None or args.exported is not None:
        found += [e for e in read_entries(args.models or Path(), args.exported) if e.path.exists()]
    return [entry for entry in found if not args.names or entry.name in args.names]


def main(argv: Sequence[str] | None = None) -> int:
    """Time what is not timed yet, write the table; return 1 where a plan is slower."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all when none is given")
    parser.add_argument("--models", type=Path, metavar="DIR")
    parser.add_argument("--exported", type=Path, metavar="DIR")
    parser.add_argument("--processes", type=int, default=3, help="for each model")
    parser.add_argument("--rounds", type=int, default=7, help="in each process")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="per process")
    parser.add_argument("--minutes", type=float, default=45, help="begin no model after that")
    parser.add_argument("--again", action="store_true", help="forget what was measured")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    parser.add_argument("--one", metavar="JSON", help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        given = json.loads(args.one)
        print(json.dumps(time_one(Path(given.pop("path")), **given)))
        return 0
    report = args.results / "fusion_regressions.json"
    known = [] if args.again or not report.exists() else json.loads(report.read_text())
    rows = {row["name"]: Row(**row) for row in known}
    args.results.mkdir(parents=True, exist_ok=True)
    end = time.monotonic() + 60 * args.minutes
    with tempfile.TemporaryDirectory() as folder:
        for entry in entries(args, Path(folder)):
            if entry.name in rows and rows[entry.name].rounds_us:
                continue
            if time.monotonic() > end:
                break
            rows[entry.name] = row = examine(
                entry, processes=args.processes, rounds=args.rounds, limit_s=args.limit
            )
            said = markdown([row]).splitlines()[-1] if row.rounds_us else f"{row.name}: {row.cause}"
            print(said, flush=True)
            files.write_text(report, json.dumps([asdict(row) for row in rows.values()]) + "\n")
    text = markdown(list(rows.values()))
    (args.results / "fusion_regressions.md").write_text(text, encoding="utf-8")
    print(text.splitlines()[0])
    timed = [row for row in rows.values() if row.rounds_us]
    return int(any(row.is_slower(o) for row in timed for o in ("fuse-ops", "none")))


if __name__ == "__main__":
    sys.exit(main())

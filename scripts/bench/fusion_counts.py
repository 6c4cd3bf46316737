"""Count the kernels of one inference: ours, TVM's, ONNX Runtime's and torch.compile's.

Ours are counted in the scheduled module, TVM's after its pipeline "zero" (FuseOps and
FuseTIR), ONNX Runtime's as the nodes of the graph that it optimised, torch.compile's as the
calls of kernels, generated ones and library's, in the code that it writes, XLA's as the
instructions of its optimised program that do work. Each count has a process of its own;
torch.compile and XLA run in the environments of ``peers.py``, where they are there. What was
counted is kept: run it again to go on::

    python scripts/bench/fusion_counts.py --models models --exported models/bench
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from coverage_table import Entry, StepError, read_entries, run_json, sample_all
from fusion_table import SIDES, Row, markdown

from tvmfuse import files

HERE = Path(__file__).parent
PEERS = HERE.parents[1] / ".venv-peers"
# The sides that run in an environment of a peer, and its name.
ENVIRONMENTS = {"inductor": "torch", "xla": "xla"}

# Nodes of ONNX Runtime and calls of ours that no processor time goes to.
_FREE_NODES = frozenset({"Constant", "Identity", "Reshape", "Squeeze", "Unsqueeze", "Flatten"})


def examine(known: Row, entry: Entry, sides: Sequence[str], *, limit_s: float) -> Row:
    """Count the kernels of one model by the sides that did not yet, each in its own process."""
    samples = sample_all(entry)
    shapes = {name: list(array.shape) for name, array in samples.items()}
    given = json.dumps({"path": str(entry.path), "shapes": shapes})
    counted: dict[str, Any] = {}
    causes = dict(known.causes)
    for side in sides:
        if known.is_known(side):
            continue
        try:
            if side in ENVIRONMENTS:
                counted[side] = by_peer(ENVIRONMENTS[side], entry.path, samples, limit_s=limit_s)
            else:
                counted |= run_json([__file__, "--one", side, given], limit_s=limit_s)
        except StepError as step:
            causes[side] = step.cause
    return replace(known, **counted, causes=causes)


def count_ours(path: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Count ours, and predict what our plan gains on TVM's."""
    from tvmfuse import _pipeline
    from tvmfuse.calibrate import calibrated
    from tvmfuse.frontend import import_model
    from tvmfuse.planner import strategy
    from tvmfuse.targets import resolve

    target = calibrated(resolve("cpu"))
    model = import_model(path, shapes=_dynamic(path, shapes))
    prepared = _pipeline.prepare(model.module, target)
    options = _pipeline.Options(strategy=strategy("fuse-ops"))
    theirs = _pipeline.plan(model.module, target, options=options).plan
    conversions = frozenset(
        name for name, origin in prepared.lowered.origins.items() if origin.pattern == "layout"
    )
    return {
        "ours": calls(prepared.module),
        "conversions": calls(prepared.module, only=conversions),
        "gain_us": prepared.plan.saved_us - theirs.saved_us,
    }


def count_tvm(path: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Count what TVM's FuseOps and FuseTIR leave of the module that we import."""
    from tvmfuse._tvm import relax, tvm
    from tvmfuse.frontend import import_model

    module = import_model(path, shapes=_dynamic(path, shapes)).module
    with tvm.target.Target("llvm"):
        return {"tvm": calls(relax.get_pipeline("zero")(module))}


def calls(module: Any, *, only: Collection[str] | None = None) -> int:
    """Return how many kernels one call of ``main`` starts; a view is none.

    Parameters
    ----------
    module : IRModule
        With kernels.
    only : collection of str, optional
        The kernels to count, by name.
    """
    from tvmfuse._tvm import relax

    count = 0
    for block in module["main"].body.blocks:
        for binding in block.bindings:
            name = str(getattr(getattr(binding.value, "op", None), "name", ""))
            if name == "relax.call_tir":
                kernel = binding.value.args[0]
                is_wanted = only is None or str(kernel.name_hint) in only
                count += is_wanted and not relax.analysis.has_reshape_pattern(module[kernel])
            elif only is None and name in ("relax.call_dps_packed", "relax.call_pure_packed"):
                count += 1
    return count


def count_onnxruntime(path: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Any]:
    """Count the nodes of the graph that ONNX Runtime optimised for this processor."""
    import onnxruntime

    del shapes
    with tempfile.TemporaryDirectory() as folder:
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.optimized_model_filepath = str(Path(folder) / "optimised.onnx")
        onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
        graph = onnx.load(options.optimized_model_filepath).graph
    return {"onnxruntime": working_nodes(graph)}


def working_nodes(graph: onnx.GraphProto) -> int:
    """Return the nodes that do work, of an If those of its longer branch."""
    count = 0
    for node in graph.node:
        inner = [working_nodes(attr.g) for attr in node.attribute if attr.HasField("g")]
        count += max(inner, default=0) + (node.op_type not in _FREE_NODES)
    return count


def by_peer(peer: str, path: Path, inputs: Mapping[str, Any], *, limit_s: float) -> int | None:
    """Count the kernels of another compiler, where its environment is."""
    python = PEERS / peer / "bin" / "python"
    with tempfile.TemporaryDirectory() as folder:
        feeds = Path(folder) / "inputs.npz"
        np.savez(feeds, **inputs)
        return printed(python, HERE / f"fusion_counts_{peer}.py", path, feeds, limit_s=limit_s)


def printed(python: Path, *command: object, limit_s: float) -> int | None:
    """Return the number that a script prints last; None where its interpreter is not there.

    Raises
    ------
    StepError
        It failed, or took too long.
    """
    if not python.exists():
        return None
    line = [str(python), *map(str, command)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise StepError("timed out", f"not done after {limit_s:.0f} s") from None
    if done.returncode:
        raise StepError("failed", (done.stderr.strip().splitlines() or ["nothing said"])[-1])
    return int(done.stdout.splitlines()[-1])


def _dynamic(path: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the inputs that the file leaves open."""
    graph = onnx.load(path, load_external_data=False).graph
    return {
        value.name: tuple(shapes[value.name])
        for value in graph.input
        if value.name in shapes
        and any(not dim.dim_value for dim in value.type.tensor_type.shape.dim)
    }


_COUNTERS: Mapping[str, Callable[[Path, Mapping[str, Sequence[int]]], dict[str, Any]]] = {
    "ours": count_ours,
    "tvm": count_tvm,
    "onnxruntime": count_onnxruntime,
}


def side_names(text: str) -> list[str]:
    """Return the sides of a list with commas."""
    names = text.split(",")
    for name in names:
        if name not in SIDES:
            raise argparse.ArgumentTypeError(f"choose from {', '.join(SIDES)}, not {name!r}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Count the kernels of every model and write the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all when none is given")
    parser.add_argument("--models", type=Path, metavar="DIR")
    parser.add_argument("--exported", type=Path, metavar="DIR")
    parser.add_argument("--sides", type=side_names, default=SIDES, metavar="NAME,...")
    parser.add_argument("--again", action="store_true", help="count those sides anew")
    parser.add_argument("--limit", type=float, default=300, metavar="SECONDS", help="per side")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    parser.add_argument("--one", nargs=2, metavar=("SIDE", "JSON"), help=argparse.SUPPRESS)
    args = parser.parse_args(argv)
    if args.one:
        side, given = args.one[0], json.loads(args.one[1])
        print(json.dumps(_COUNTERS[side](Path(given["path"]), given["shapes"])))
        return 0
    entries = [
        entry
        for entry in read_entries(args.models, args.exported)
        if entry.path.exists() and (not args.names or entry.name in args.names)
    ]
    args.results.mkdir(parents=True, exist_ok=True)
    report = args.results / "fusion_counts.json"
    known = json.loads(report.read_text()) if report.exists() else []
    rows = {row["name"]: Row(**row) for row in known}
    chosen = {entry.name for entry in entries}
    if args.again:
        rows = {n: row.without(args.sides) if n in chosen else row for n, row in rows.items()}
    for entry in entries:
        before = rows.get(entry.name, Row(entry.name))
        rows[entry.name] = row = examine(before, entry, args.sides, limit_s=args.limit)
        text = markdown(list(rows.values()))
        causes = "; ".join(f"{side}: {cause}" for side, cause in row.causes.items())
        print(markdown([row]).splitlines()[4], causes, flush=True)
        (args.results / "fusion_counts.md").write_text(text, encoding="utf-8")
        text = json.dumps([asdict(row) for row in rows.values()], indent=1)
        files.write_text(report, text + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

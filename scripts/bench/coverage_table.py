"""Table which models compile, and how far each is from ONNX Runtime.

Every model is compiled and run by the command line in processes of its own, under
a time limit, on inputs that resemble real ones. An output agrees when
max |a - b| / max |b| is within what the model's floating type allows
(``tvmfuse/tolerance.py``) with NaN in the same places, or within twice the
distance of ONNX Runtime from itself (optimised against not optimised)::

    python scripts/bench/coverage_table.py --models models --exported models/bench
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
import textwrap
import time
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from sample_inputs import sample

from tvmfuse.report import machine
from tvmfuse.tolerance import of_model

HERE = Path(__file__).parent
MODELS_TOML = HERE.parent / "models.toml"
NOISE_FACTOR = 2.0


@dataclass(frozen=True)
class Entry:
    """A model file, and what to feed it (see ``models.toml``)."""

    name: str
    path: Path
    inputs: Mapping[str, Mapping[str, Any]]
    tiers: Sequence[str] = ()


@dataclass(frozen=True)
class Row:
    """What became of one model.

    Parameters
    ----------
    name : str
        The model's name.
    result : str
        ``agrees``, ``differs``, ``refused`` (an error of ours, in one line),
        ``failed`` (anything else) or ``timed out``.
    error, noise : float, optional
        Largest relative error over the outputs: ours, and ONNX Runtime's from itself. None
        where a shape or the place of a NaN is wrong.
    kernels : int, optional
        Kernels in the compiled model.
    compile_s : float, optional
        Seconds that the compile command took.
    cause : str
        Why it does not agree; "" where it does.
    """

    name: str
    result: str
    error: float | None = None
    noise: float | None = None
    kernels: int | None = None
    compile_s: float | None = None
    cause: str = ""


class StepError(Exception):
    """A command did not do its work; carries the result and its cause."""

    def __init__(self, result: str, cause: str) -> None:
        super().__init__(cause)
        self.result = result
        self.cause = cause


def read_entries(models: Path, exported: Path | None) -> tuple[Entry, ...]:
    """Return the fetched models and, where a folder is given, the exported networks."""
    listed = tomllib.loads(MODELS_TOML.read_text(encoding="utf-8"))
    folders = {"models": models, "exported": exported}
    return tuple(
        Entry(name, folder / f"{name}.onnx", given["inputs"], given["tiers"])
        for kind, folder in folders.items()
        if folder is not None
        for name, given in listed[kind].items()
    )


def examine(entry: Entry, *, limit_s: float) -> Row:
    """Compile ``entry``, run it and compare it with ONNX Runtime."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        bundle, inputs, outputs = folder / "net.tvmfuse", folder / "in.npz", folder / "out.npz"
        np.savez(inputs, **sample_all(entry))
        compile_model = ["compile", entry.path, "-o", bundle, *shape_options(entry)]
        run_bundle = ["run", bundle, "--inputs", inputs, "--save", outputs]
        compare = [HERE / "reference.py", entry.path, inputs, outputs]
        try:
            started = time.monotonic()
            compiled = run_json(["-m", "tvmfuse", *compile_model, "--json"], limit_s=limit_s)
            compile_s = time.monotonic() - started
            run_json(["-m", "tvmfuse", *run_bundle, "--json"], limit_s=limit_s)
            compared = run_json(compare, limit_s=limit_s)
        except StepError as step:
            cause = step.cause.removeprefix("tvmfuse: ").replace(str(entry.path), entry.path.name)
            return Row(entry.name, step.result, cause=cause)
    return judge(entry.name, compiled, compared, compile_s=compile_s)


def judge(
    name: str,
    compiled: Mapping[str, Any],
    compared: Mapping[str, Mapping[str, float]],
    *,
    compile_s: float,
) -> Row:
    """Return the row of a model that was compiled and compared.

    Parameters
    ----------
    name : str
        The model's name.
    compiled : Mapping
        What ``tvmfuse compile --json`` printed.
    compared : Mapping
        The ``error`` and the ``noise`` of each output, by its name.
    compile_s : float
        Seconds that the compile command took.
    """
    tolerated = of_model(compiled["precision"])
    wrong = {
        output: found
        for output, found in compared.items()
        if found["error"] > max(tolerated, NOISE_FACTOR * found["noise"])
    }
    causes = [
        f"output {output} is {found['error']:.1e} off where {tolerated:g} is allowed"
        for output, found in wrong.items()
    ]
    error = max(found["error"] for found in compared.values())
    return Row(
        name,
        "differs" if wrong else "agrees",
        error=error if math.isfinite(error) else None,
        noise=max(found["noise"] for found in compared.values()),
        kernels=sum(compiled["kernels"].values()),
        compile_s=round(compile_s, 1),
        cause="; ".join(causes),
    )


def sample_all(entry: Entry) -> dict[str, Any]:
    """Return one array for each input of the model file, by name."""
    graph = onnx.load(entry.path, load_external_data=False).graph
    weights = {tensor.name for tensor in graph.initializer}
    return {
        value.name: sample(
            entry.inputs.get(value.name, {}),
            shape=[dim.dim_value for dim in value.type.tensor_type.shape.dim],
            dtype=onnx.helper.tensor_dtype_to_np_dtype(value.type.tensor_type.elem_type).name,
        )
        for value in graph.input
        if value.name not in weights
    }


def shape_options(entry: Entry) -> list[str]:
    """Return the ``--shape`` options that bind the model's dynamic dimensions."""
    return [
        word
        for name, given in entry.inputs.items()
        if "shape" in given
        for word in ("--shape", f"{name}={','.join(map(str, given['shape']))}")
    ]


def run_json(command: Sequence[object], *, limit_s: float) -> Any:
    """Run Python with ``command`` and return what it printed as JSON.

    Raises
    ------
    StepError
        It exited with an error, or took longer than ``limit_s`` seconds.
    """
    line = [sys.executable, *map(str, command)]
    try:
        done = subprocess.run(line, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        raise StepError("timed out", f"not done after {limit_s:.0f} s") from None
    if done.returncode == 0:
        return json.loads(done.stdout)
    lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}, nothing said"]
    raise StepError("refused" if done.returncode == 2 else "failed", lines[-1])


def markdown(report: Mapping[str, Any]) -> str:
    """Return the table as it stands in README.

    Parameters
    ----------
    report : Mapping
        The ``date``, the ``machine`` and the ``rows``, as ``coverage.json`` has them.
    """
    rows = [Row(**row) for row in report["rows"]]
    agreeing = sum(row.result == "agrees" for row in rows)
    lines = [
        f"{report['date']}, {report['machine']['processor']}: **{agreeing} of {len(rows)} models "
        "agree with ONNX Runtime**.",
        "",
        "| model | result | error | ONNX Runtime from itself | kernels | compile, s | cause |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    return "\n".join([*lines, *map(line, rows)]) + "\n"


def line(row: Row) -> str:
    """Return a model's line of the table."""
    numbers = [
        "" if row.error is None else f"{row.error:.1e}",
        "" if row.noise is None else f"{row.noise:.1e}",
        "" if row.kernels is None else str(row.kernels),
        "" if row.compile_s is None else f"{row.compile_s:.1f}",
    ]
    cause = textwrap.shorten(row.cause, 240, placeholder=" …").replace("|", "\\|")
    return f"| {row.name} | {row.result} | {' | '.join(numbers)} | {cause} |"


def main(argv: Sequence[str] | None = None) -> int:
    """Examine the models, print a line for each and write the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all when none is given")
    parser.add_argument("--models", type=Path, required=True, metavar="DIR")
    parser.add_argument("--exported", type=Path, metavar="DIR")
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="per command")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    args = parser.parse_args(argv)
    rows = []
    for entry in read_entries(args.models, args.exported):
        if args.names and entry.name not in args.names:
            continue
        rows.append(examine(entry, limit_s=args.limit))
        print(line(rows[-1]), flush=True)
    report = {
        "date": date.today().isoformat(),
        "machine": machine.describe(),
        "rows": [asdict(row) for row in rows],
    }
    print(markdown(report).splitlines()[0])
    if not args.names:
        args.results.mkdir(exist_ok=True)
        data = json.dumps(report, indent=1)
        (args.results / "coverage.json").write_text(data + "\n", encoding="utf-8")
        (args.results / "coverage.md").write_text(markdown(report), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

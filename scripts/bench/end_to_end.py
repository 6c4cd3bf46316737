"""Time the exported networks against ONNX Runtime and against the machine's limit.

Every network is compiled by ``tvmfuse compile`` at zero trials and timed by
``tvmfuse bench``: each side in a process of its own, in turns, with equally many
threads. The limit is the network's arithmetic at the peak that ``tvmfuse
calibrate`` measured::

    python scripts/bench/end_to_end.py --models models/bench
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
NETWORKS = ("resnet18", "mobilenetv2", "bert_base")


def run_json(*words: object) -> Any:
    """Run the command line with ``words`` and return what it printed as JSON."""
    line = [sys.executable, "-m", "tvmfuse", *map(str, words), "--json"]
    return json.loads(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout)


def measure(model: Path, *, rounds: int, threads: int) -> dict[str, Any]:
    """Compile and time one network.

    Returns
    -------
    dict
        The row of the table: times in milliseconds, work in GFLOP.
    """
    with tempfile.TemporaryDirectory() as folder:
        bundle = Path(folder) / "net.tvmfuse"
        compiled = run_json("compile", model, "-o", bundle)
        peak_kib = compile_memory(model, Path(folder) / "again.tvmfuse")
        timed = run_json(
            "bench", bundle, "--model", model, "--rounds", rounds, "--threads", threads
        )
    ours, *peers = timed["sides"]
    return {
        "network": model.stem,
        "machine": timed["machine"],
        "threads": timed["threads"],
        "kernels": sum(compiled["kernels"].values()),
        "compile_s": sum(compiled["seconds"].values()),
        "compile_peak_mib": peak_kib / 1024,
        "gflop": work(model),
        "ours_ms": ours["median_us"] / 1e3,
        "quartiles_ms": [value / 1e3 for value in ours["quartiles_us"]],
        "peers": {
            peer["side"]: {
                "version": peer["version"],
                "median_ms": peer["median_us"] / 1e3,
                "quartiles_ms": [value / 1e3 for value in peer["quartiles_us"]],
                "ratio": peer["ratio"],
                "ratio_quartiles": peer["ratio_quartiles"],
            }
            for peer in peers
        },
    }


def compile_memory(model: Path, bundle: Path) -> int:
    """Return the largest resident size of one compile, in KiB."""
    line = [sys.executable, "-m", "tvmfuse", "compile", str(model), "-o", str(bundle)]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    process = subprocess.Popen(line, **quiet)
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, line)
    return usage.ru_maxrss


def work(model: Path) -> float:
    """Return the floating-point operations of a network, in GFLOP."""
    code = "import sys; from tvmfuse.report.work import flops; print(flops(sys.argv[1]))"
    line = [sys.executable, "-c", code, str(model)]
    return float(subprocess.run(line, check=True, stdout=subprocess.PIPE, text=True).stdout) / 1e9


def markdown(result: Mapping[str, Any]) -> str:
    """Return the table as it stands in README."""
    rows = result["rows"]
    machine, peak = rows[0]["machine"], result["peak_gflops"]
    lines = [
        f"{result['date']}, {machine['processor']}, {rows[0]['threads']} threads, float32, "
        f"batch 1, zero trials. Peak measured by `tvmfuse calibrate`: {peak:.0f} GFLOP/s. "
        "Medians; quartiles in brackets.",
        "",
        "| network | tvmfuse, ms | ONNX Runtime, ms | tvmfuse takes | of the limit | kernels "
        "| compile, s | memory, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        peer = row["peers"]["onnxruntime"]
        limit_ms = row["gflop"] / peak * 1e3
        lines.append(
            f"| {row['network']} | {span(row['ours_ms'], row['quartiles_ms'])} "
            f"| {span(peer['median_ms'], peer['quartiles_ms'])} "
            f"| {span(peer['ratio'], peer['ratio_quartiles'], digits=2)}× "
            f"| {100 * limit_ms / row['ours_ms']:.0f} % | {row['kernels']} "
            f"| {row['compile_s']:.1f} | {row['compile_peak_mib']:.0f} |"
        )
    return "\n".join(lines) + "\n"


def span(middle: float, quartiles: Sequence[float], *, digits: int = 1) -> str:
    """Return a median with its quartiles."""
    low, high = quartiles
    return f"{middle:.{digits}f} [{low:.{digits}f}, {high:.{digits}f}]"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure the networks and write the results; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("networks", nargs="*", default=NETWORKS, metavar="NETWORK")
    parser.add_argument("--models", type=Path, required=True, metavar="DIR")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    args = parser.parse_args(argv)
    peaks = run_json("calibrate")
    rows = []
    for name in args.networks:
        path = args.models / f"{name}.onnx"
        rows.append(measure(path, rounds=args.rounds, threads=args.threads))
        print(json.dumps(rows[-1]), file=sys.stderr, flush=True)
    result = {
        "date": date.today().isoformat(),
        "peak_gflops": peaks["peaks"]["gflops"],
        "rows": rows,
    }
    args.results.mkdir(exist_ok=True, parents=True)
    text = json.dumps(result, indent=1) + "\n"
    (args.results / "end_to_end.json").write_text(text, encoding="utf-8")
    (args.results / "end_to_end.md").write_text(markdown(result), encoding="utf-8")
    print(markdown(result))
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""How long collecting and planning take on graphs of 1,000 to 100,000 operators.

Each graph is a stack of transformer layers and residual convolution blocks, and each
size runs in a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse.host import detect

SIZES = (1_000, 10_000, 100_000)
_ROWS, _WIDTH, _HEADS = 16, 32, 2
_CHANNELS, _SIDE = 8, 8
_EACH = 32  # operators of one layer and one block, once they are in canonical form
RESULTS = Path(__file__).parent / "results"


@dataclass(frozen=True)
class Figures:
    """What one graph took: processor seconds of each stage, and the memory that they added."""

    n_operators: int
    candidates: int
    groups: int
    collect_s: float
    plan_s: float
    partition_s: float
    canonicalise_s: float
    memory_mib: float


def stack(n_operators: int) -> Any:
    """Return a module of about so many operators, in canonical form or close to it."""
    from tvmfuse._tvm import relax

    op = relax.op
    rng = np.random.default_rng(0)
    square, wide, narrow = (
        relax.const(rng.normal(0, 0.1, shape).astype("float32"))
        for shape in ((_WIDTH, _WIDTH), (_WIDTH, 4 * _WIDTH), (4 * _WIDTH, _WIDTH))
    )
    bias, wide_bias, gain = (
        relax.const(rng.normal(0, 0.1, size).astype("float32"))
        for size in (_WIDTH, 4 * _WIDTH, _WIDTH)
    )
    kernel = relax.const(rng.normal(0, 0.1, (_CHANNELS, _CHANNELS, 3, 3)).astype("float32"))
    offset = relax.const(rng.normal(0, 0.1, (_CHANNELS, 1, 1)).astype("float32"))
    scale = relax.const(np.float32(0.25))
    builder = relax.BlockBuilder()
    emit = builder.emit

    def heads(x: Any) -> Any:
        y = emit(op.add(emit(op.matmul(x, square)), bias))
        split = emit(op.reshape(y, (_ROWS, _HEADS, _WIDTH // _HEADS)))
        return emit(op.permute_dims(split, [1, 0, 2]))

    def layer(x: Any) -> Any:
        normed = emit(op.nn.layer_norm(x, gain, bias, [-1]))
        q, k, v = (heads(normed) for _ in range(3))
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))))
        weights = emit(op.nn.softmax(emit(op.multiply(scores, scale))))
        mixed = emit(op.permute_dims(emit(op.matmul(weights, v)), [1, 0, 2]))
        joined = emit(op.reshape(mixed, (_ROWS, _WIDTH)))
        x = emit(op.add(emit(op.add(emit(op.matmul(joined, square)), bias)), x))
        normed = emit(op.nn.layer_norm(x, gain, bias, [-1]))
        hidden = emit(op.nn.gelu(emit(op.add(emit(op.matmul(normed, wide)), wide_bias))))
        return emit(op.add(emit(op.add(emit(op.matmul(hidden, narrow)), bias)), x))

    def block(x: Any) -> Any:
        y = emit(op.nn.conv2d(x, kernel, padding=(1, 1, 1, 1)))
        y = emit(op.nn.relu(emit(op.add(y, offset))))
        y = emit(op.add(emit(op.nn.conv2d(y, kernel, padding=(1, 1, 1, 1))), offset))
        y = emit(op.nn.relu(emit(op.add(y, x))))
        gate = emit(op.sigmoid(emit(op.mean(y, axis=[2, 3], keepdims=True))))
        return emit(op.multiply(y, gate))

    text = relax.Var("text", relax.TensorType((_ROWS, _WIDTH), "float32"))
    image = relax.Var("image", relax.TensorType((1, _CHANNELS, _SIDE, _SIDE), "float32"))
    with builder.function("main", [text, image]):
        with builder.dataflow():
            x, y = text, image
            for _ in range(max(1, n_operators // _EACH)):
                x, y = layer(x), block(y)
            results = relax.Tuple([builder.emit_output(op.abs(x)), builder.emit_output(op.abs(y))])
        builder.emit_func_output(results)
    return builder.get()


def measure(n_operators: int) -> Figures:
    """Collect and plan one graph in this process."""
    from tvmfuse._pipeline import Options
    from tvmfuse.cost.roofline import Roofline
    from tvmfuse.passes.canonicalise import canonicalise
    from tvmfuse.passes.collect import collect
    from tvmfuse.passes.partition import partition
    from tvmfuse.planner import choose
    from tvmfuse.targets import resolve

    module = stack(n_operators)
    before = _peak_mib()
    start = time.process_time()
    module = canonicalise(module)
    canonical = time.process_time()
    found = collect(module, Options().registry)
    collected = time.process_time()
    plan = choose(found.graphs, found.candidates, Roofline(resolve("cpu").peaks))
    planned = time.process_time()
    memory = _peak_mib() - before
    partition(module, plan)
    end = time.process_time()
    return Figures(
        n_operators=sum(bool(name) for name in found.graphs["main"].ops),
        candidates=len(found.candidates),
        groups=len(plan.groups),
        collect_s=collected - canonical,
        plan_s=planned - collected,
        partition_s=end - planned,
        canonicalise_s=canonical - start,
        memory_mib=memory,
    )


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def in_its_own_process(n_operators: int) -> Figures:
    """Collect and plan one graph in a process that did nothing before."""
    done = subprocess.run(
        [sys.executable, __file__, "--one", str(n_operators)],
        stdout=subprocess.PIPE,
        text=True,
        check=True,
    )
    return Figures(**json.loads(done.stdout))


def table(rows: Sequence[Figures]) -> str:
    """Write the figures as Markdown, with what each stage costs an operator."""
    lines = [
        f"{date.today()}, {detect().model}, seconds of processor time in one thread; memory is "
        "what collecting and planning add to the graph.",
        "",
        "| operators | candidates | groups | canonicalise | collect | plan | partition "
        "| collect + plan, µs an operator | memory, MiB |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        each_us = (row.collect_s + row.plan_s) / row.n_operators * 1e6
        cells = (
            f"{row.n_operators:,}",
            f"{row.candidates:,}",
            f"{row.groups:,}",
            f"{row.canonicalise_s:.1f}",
            f"{row.collect_s:.1f}",
            f"{row.plan_s:.1f}",
            f"{row.partition_s:.1f}",
            f"{each_us:.0f}",
            f"{row.memory_mib:.0f}",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def main(argv: Sequence[str] | None = None) -> int:
    """Measure every size; return 1 where a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("sizes", nargs="*", type=int, default=list(SIZES), metavar="OPERATORS")
    parser.add_argument("--one", type=int, help="measure one graph here, and print its figures")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    if args.one:
        print(json.dumps(asdict(measure(args.one))))
        return 0
    rows = [in_its_own_process(size) for size in args.sizes]
    args.results.mkdir(parents=True, exist_ok=True)
    text = table(rows)
    (args.results / "fusion_scaling.md").write_text(text, encoding="utf-8")
    report = json.dumps([asdict(row) for row in rows], indent=1)
    (args.results / "fusion_scaling.json").write_text(report, encoding="utf-8")
    print(text)
    missed = [row for row in rows if not is_met(row)]
    for row in missed:
        print(f"missed at {row.n_operators:,} operators", file=sys.stderr)
    return int(bool(missed))


def is_met(row: Figures) -> bool:
    """Tell whether a graph was collected and planned in the time and memory that are promised.

    20 s for 10,000 operators and 5 minutes for 100,000, which is a line and a bit; 2 GiB.
    """
    seconds = row.collect_s + row.plan_s
    allowed_s = 20 if row.n_operators <= 11_000 else 300 * row.n_operators / 100_000
    return seconds < allowed_s and row.memory_mib < 2048


if __name__ == "__main__":
    sys.exit(main())

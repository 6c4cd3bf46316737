"""Compare the search with an exhaustive one: how much of the gain after how many trials.

    python scripts/bench/tuning_curve.py --into curve.json

Every point of two kernels' spaces is measured once; the search is then run on that table, with
ten seeds, so that both are judged by the same numbers.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

from tvmfuse._tvm import te
from tvmfuse._tvm.threads import in_use as threads
from tvmfuse.kernels import conv, families, gemm
from tvmfuse.kernels.conv import Window
from tvmfuse.passes.schedule import machine_of
from tvmfuse.store import keys
from tvmfuse.targets import resolve
from tvmfuse.tuning.measure import Limits, WorkerMeasurer
from tvmfuse.tuning.space import Point, explore, key
from tvmfuse.tuning.strategy import Search
from tvmfuse.tuning.task import Task

_SEEDS = 10
_BATCH = 6
_SHARES = (0.05, 0.1, 0.2, 0.5)

Table = dict[tuple[tuple[str, Any], ...], float | None]


def product(machine: Any) -> Any:
    """Return BERT's 128 x 768 x 768 product."""
    columns = 16
    x, panels = te.placeholder((128, 768), name="x"), te.placeholder((48, 768, columns), name="w")
    return te.create_prim_func([x, panels, gemm.emit_packed(x, panels, 768, machine)])


def convolution(machine: Any) -> Any:
    """Return ResNet's 3 x 3 convolution of 128 channels over 28 x 28 pixels."""
    block = machine.block
    n_blocks = 128 // block
    x = te.placeholder((1, n_blocks, 28, 28, block), name="x")
    weight = te.placeholder((n_blocks, n_blocks, 3, 3, block, block), name="w")
    window = Window((3, 3), padding=(1, 1, 1, 1))
    return te.create_prim_func([x, weight, conv.emit(x, weight, window, machine)])


KERNELS = {"product": product, "convolution": convolution}


def measured(name: str, *, limit: int) -> tuple[Task, Table]:
    """Measure every point of a kernel's space, or ``limit`` of them and only these."""
    target = resolve("cpu")
    machine = machine_of(target)
    function = KERNELS[name](machine)
    space = explore(lambda recorder: families.schedule(function, machine, recorder.choose))
    family = families.family_of(function)
    task = Task((name,), family, keys.workload(function), 1, 1, space)
    points = [space.default, *space.points(Random(0), limit=limit)]
    table: Table = {}
    with WorkerMeasurer(
        target, machine, threads=threads(), limits=Limits(budget_us=20e3)
    ) as measure:
        for number, point in enumerate(points):
            table[key(point)] = measure(task, point, best_us=_best(table)).median_us
            print(f"\r{name}: {number + 1}/{len(points)}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)
    return task, table


def curve(task: Task, table: Table, *, seed: int) -> list[float]:
    """Return the best time after each trial of the search on a table."""
    search = Search(task.space, seed=seed)
    for point in task.space.points(Random(0), limit=task.space.size):
        if key(point) not in table:  # where only a part was measured, the rest is taken as known
            search.costs[key(point)] = None
    best: list[float] = []
    while len(best) < len(table):
        batch: list[Point] = search.propose(_BATCH)
        if not batch:
            break
        for point in batch:
            search.observe(point, table[key(point)])
            best.append(search.best_us)
    return best


def _best(table: Table) -> float | None:
    return min((time for time in table.values() if time is not None), default=None)


def main() -> None:
    """Measure, search, and write both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--into", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=1000, help="points of a kernel at most")
    parser.add_argument("kernels", nargs="*", help="some of: " + ", ".join(KERNELS))
    arguments = parser.parse_args()
    results = {}
    for name in arguments.kernels or KERNELS:
        task, table = measured(name, limit=arguments.limit)
        default_us, best_us = table[key(task.space.default)] or 0.0, _best(table) or 0.0
        curves = [curve(task, table, seed=seed) for seed in range(_SEEDS)]
        results[name] = {
            "points": len(table),
            "default_us": default_us,
            "best_us": best_us,
            "curves_us": curves,
            "table": [[dict(point), time_us] for point, time_us in table.items()],
        }
        print(f"{name}: {len(table)} points, {default_us:.0f} us by default, {best_us:.0f} best")
        for share in _SHARES:
            at = max(1, round(share * len(table)))
            gains = [
                (default_us - c[min(at, len(c)) - 1]) / max(default_us - best_us, 1e-9)
                for c in curves
            ]
            print(
                f"  after {at} trials: {median(gains):.0%} of the gain, at worst {min(gains):.0%}"
            )
    arguments.into.write_text(json.dumps(results))


if __name__ == "__main__":
    main()

"""Stock MetaSchedule, TVM's own tuner, for a bounded time.

As a side it loads what tuning left beside the model. As a program it tunes::

    python -P scripts/bench/peers/metaschedule.py model.onnx --seconds 600 --threads 2

Search, space and cost model are TVM's defaults. What is mended is that without which
nothing at all is measured: its workers import TVM's intrinsics, which takes longer
than they are given (``tvmfuse/_tvm/imports.py``), they get more time, and tasks have
their turns one by one. Tuning has no limit of time in TVM: its process is ended.
"""

from __future__ import annotations

import argparse
import json
import os
import runpy
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import tvm
from tvm import relax
from tvm.relax.frontend.onnx import from_onnx
from tvm.target import Target

Array = np.ndarray[Any, Any]

IMPORTS = Path(__file__).parents[3] / "tvmfuse" / "_tvm" / "imports.py"
TRIALS_PER_TURN = 64  # TVM's own number
PATIENCE_S = 300.0
RECORDS, WORKLOADS = "database_tuning_record.json", "database_workload.json"


def load(
    model: str, feeds: Mapping[str, Array], threads: int
) -> tuple[Callable[[], list[Array]], str]:
    """Load the library that tuning left; see ``tvmfuse/runtime/worker.py``."""
    library = Path(model).with_suffix(f".metaschedule-{threads}.so")
    device = tvm.cpu()
    machine = relax.VirtualMachine(tvm.runtime.load_module(str(library)), device)
    inputs = [tvm.runtime.tensor(array, device) for array in feeds.values()]

    def call() -> list[Array]:
        outputs = machine["main"](*inputs)
        several = [outputs] if isinstance(outputs, tvm.runtime.Tensor) else outputs
        return [output.numpy() for output in several]

    return call, f"MetaSchedule of tvm {version('apache-tvm')}"


def target(threads: int) -> Target:
    """Return this machine as TVM's tuner wants it: with its number of cores."""
    here = Target.from_device(tvm.cpu()).export()
    return Target({**here, "num-cores": threads})


def fused(model: Path, device: Target) -> tvm.IRModule:
    """Import a model and fuse it as TVM does before it asks for records."""
    with device:
        return tvm.transform.Sequential(
            [
                relax.transform.LegalizeOps(),
                relax.transform.AnnotateTIROpPattern(),
                relax.transform.FoldConstant(),
                relax.transform.FuseOps(),
                relax.transform.FuseTIR(),
            ]
        )(from_onnx(onnx.load(model)))


def repair() -> None:
    """Import TVM's intrinsics in seconds; runs in every worker, too."""
    runpy.run_path(os.environ["TVMFUSE_IMPORTS"])["import_tensor_intrinsics"]()


def tune(model: Path, folder: Path, *, threads: int) -> None:
    """Tune until the process is ended.

    TVM's scheduler keeps no record before it has been through all tasks once, which
    takes longer than there is time. Here each task has its turn by itself, the ones
    with the most arithmetic first, and again and again.
    """
    repair()
    ms = tvm.s_tir.meta_schedule
    device = target(threads)
    found = ms.relax_integration.extract_tasks(fused(model, device), device)
    found.sort(key=arithmetic, reverse=True)
    tasks, weights = ms.relax_integration.extracted_tasks_to_tune_contexts(
        found, str(folder), seed=0
    )
    database = ms.database.JSONDatabase(work_dir=str(folder))
    builder = ms.builder.LocalBuilder(
        max_workers=threads, timeout_sec=PATIENCE_S, initializer=repair
    )
    runner = ms.runner.LocalRunner(timeout_sec=PATIENCE_S, initializer=repair)
    cost_model = ms.cost_model.XGBModel()
    while True:
        for task, weight in zip(tasks, weights, strict=True):
            ms.tune.tune_tasks(
                tasks=[task],
                task_weights=[weight],
                work_dir=str(folder),
                max_trials_global=TRIALS_PER_TURN,
                builder=builder,
                runner=runner,
                database=database,
                cost_model=cost_model,
            )


def arithmetic(task: Any) -> float:
    """Return the operations of all places that a task stands for."""
    return tvm.s_tir.analysis.estimate_tir_flops(task.dispatched[0]) * task.weight


def tune_for(model: Path, folder: Path, *, threads: int, seconds: float) -> str:
    """Tune in a process of its own for a while; return its last words where it failed."""
    command = [sys.executable, "-P", __file__, str(model), "--into", str(folder)]
    log = folder / "log.txt"
    with log.open("w") as said:
        process = subprocess.Popen(
            [*command, "--threads", str(threads)],
            stdout=said,
            stderr=subprocess.STDOUT,
            start_new_session=True,  # its workers end with it
        )
        try:
            process.wait(timeout=seconds)
        except subprocess.TimeoutExpired:
            return ""
        finally:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
    lines = log.read_text(errors="replace").strip().splitlines() or ["nothing said"]
    return "" if process.returncode == 0 else lines[-1]


def drop_torn_line(path: Path) -> None:
    """Drop the end of a file of lines that was being written: TVM refuses the whole file."""
    if path.exists():
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
        path.write_text("".join(line for line in lines if line.endswith("\n")), encoding="utf-8")


def finish(model: Path, folder: Path, *, threads: int) -> dict[str, int]:
    """Compile with what tuning found; return how many tasks there are, and how many it reached."""
    for name in (RECORDS, WORKLOADS):
        drop_torn_line(folder / name)
    repair()
    ms = tvm.s_tir.meta_schedule
    device = target(threads)
    database = ms.database.JSONDatabase(work_dir=str(folder))
    tasks = ms.relax_integration.extract_tasks(fused(model, device), device)
    reached = [
        task
        for task in tasks
        if database.query_tuning_record(task.dispatched[0], device, task.task_name) is not None
    ]
    executable = ms.relax_integration.compile_relax(
        database, from_onnx(onnx.load(model)), device, params={}
    )
    library = model.with_suffix(f".metaschedule-{threads}.so")
    partial = model.with_suffix(".partial.so")
    executable.export_library(str(partial))
    partial.replace(library)
    return {"tasks": len(tasks), "reached": len(reached), "records": len(database)}


def main() -> None:
    """Tune a model, unless it was tuned for as long before; print what was reached as JSON."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", type=Path)
    parser.add_argument("--threads", type=int, required=True)
    parser.add_argument("--seconds", type=float)
    parser.add_argument("--into", type=Path, help="tune into this folder until ended")
    args = parser.parse_args()
    os.environ["TVMFUSE_IMPORTS"] = str(IMPORTS)
    os.environ["TVM_NUM_THREADS"] = str(args.threads)
    if args.into:
        tune(args.model, args.into, threads=args.threads)
        return
    known = args.model.with_suffix(f".metaschedule-{args.threads}-{args.seconds:.0f}s.json")
    if not known.exists():
        folder = args.model.parent / f"metaschedule-{args.threads}-{args.seconds:.0f}s"
        folder.mkdir(exist_ok=True)
        before = os.getloadavg()[0]
        failed = tune_for(args.model, folder, threads=args.threads, seconds=args.seconds)
        after = os.getloadavg()[0]
        found = finish(args.model, folder, threads=args.threads)
        said = (
            f"tuned for {args.seconds:.0f} s (load average {before:.1f} before and {after:.1f} "
            f"after), in which it reached {found['reached']} of {found['tasks']} kernels; "
            f"{found['records']} records" + (f"; it stopped by itself: {failed}" if failed else "")
        )
        known.write_text(json.dumps({"seconds": args.seconds, **found, "said": said}))
    print(known.read_text())


if __name__ == "__main__":
    main()

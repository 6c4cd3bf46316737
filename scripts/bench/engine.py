"""Check and time tvmfuse and its peers on one model: what all benchmarks here share.

Each side has a process of its own; the processes take turns. What a side computes
is compared with ONNX Runtime before it is timed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from hashlib import file_digest
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import compiling
import numpy as np
import onnx
from coverage_table import Entry, StepError, sample_all
from crew import Crew
from outcome import Result, Setting
from sides import METASCHEDULE, OURS, REFERENCE, TUNED, Peer

from tvmfuse.errors import InputError, TuningError
from tvmfuse.runtime import npz
from tvmfuse.runtime.benchmark import take_turns
from tvmfuse.runtime.comparison import compare
from tvmfuse.runtime.side import Worker
from tvmfuse.tolerance import coarsest, of_model

# The others would wait for a side whose calls take longer: it is timed alone, by a few calls.
SLOW_US = 1e6
ALONE_US = 15e6


def measure(
    entry: Entry,
    peers: Sequence[Peer],
    setting: Setting,
    *,
    crew: Crew | None = None,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Check every side on one model, then time those that are right.

    Parameters
    ----------
    entry : Entry
        The model.
    peers : sequence of Peer
        The sides, ONNX Runtime among them.
    setting : Setting
        How every side is measured.
    crew : Crew, optional
        Processes that stay for the next model; tvmfuse then compiles in its own. Without,
        each side has a fresh one, and tvmfuse compiles by its command line before.
    progress : callable
        Is told what goes on, in a few words.

    Returns
    -------
    list of Result
        In the order of ``peers``.
    """
    model, inputs = prepare(entry, setting.scratch)
    results: dict[str, Result] = {}
    workers: dict[str, Worker] = {}
    with TemporaryDirectory() as folder, ExitStack() as stack:
        if stays := crew is not None:
            team = crew
        else:
            team = stack.enter_context(Crew(threads=setting.threads, patience_s=setting.patience_s))
        for peer in sorted(peers, key=lambda peer: peer.name != REFERENCE):
            progress(f"{entry.name}: check {peer.name}")
            result = Result(entry.name, peer.name)
            try:
                given = model
                if not stays:
                    given, compiled = compile_first(peer, model, Path(folder), setting)
                    result = replace(result, compiled=compiled)
                worker, version = team.load(peer, given, inputs)
                result = replace(result, version=version)
                result = check(result, worker, Path(folder), patience_s=setting.patience_s)
            except StepError as step:
                result = replace(result, cause=f"{step.result}: {step.cause}")
            except TuningError as error:
                result = replace(result, cause=str(error).removeprefix("bench: "))
            results[peer.name] = result
            if result.cause or result.is_alone:
                team.dismiss(peer.name)
            else:
                workers[peer.name] = worker
        if setting.rounds:
            progress(f"{entry.name}: time {', '.join(workers)}")
            results |= time_in_turns(results, workers, setting)
        if any(results[name].cause for name in workers):  # one of them died
            for name in workers:
                team.dismiss(name)
    found = with_ratios(results)
    return [found[peer.name] for peer in peers]


def prepare(entry: Entry, scratch: Path) -> tuple[Path, Path]:
    """Write a model, its dynamic extents bound, and its inputs; return both paths.

    Their folder is named by the file's content, so that what a peer compiles and
    leaves there is never taken for another file's.
    """
    with entry.path.open("rb") as file:
        digest = file_digest(file, "sha256").hexdigest()[:12]
    folder = scratch / f"{entry.name}-{digest}"
    folder.mkdir(parents=True, exist_ok=True)
    model, inputs = folder / f"{entry.name}.onnx", folder / "inputs.npz"
    if not model.exists():
        feeds = sample_all(entry)
        npz.write(feeds, inputs)
        bound = onnx.load(entry.path)
        for value in bound.graph.input:
            if value.name in feeds:
                dims = value.type.tensor_type.shape.dim
                for dim, extent in zip(dims, feeds[value.name].shape, strict=True):
                    dim.dim_value = extent
        partial = model.with_suffix(".partial")
        onnx.save(bound, partial)
        partial.replace(model)
    return model, inputs


def compile_first(
    peer: Peer, model: Path, folder: Path, setting: Setting
) -> tuple[Path, Mapping[str, Any] | None]:
    """Do what a side needs before it can load; return what to load, and what that took.

    Raises
    ------
    StepError
        It did not compile.
    """
    if peer.name in (OURS, TUNED):
        store = setting.store if peer.name == TUNED else None
        if peer.name == TUNED and store is None:
            raise StepError("not measured", "no store of records was given (--db)")
        return compiling.compile_ours(
            model,
            folder / f"{peer.name}.tvmfuse",
            store=store,
            threads=setting.threads,
            patience_s=setting.patience_s,
        )
    if peer.name == METASCHEDULE:
        return model, compiling.by_metaschedule(
            peer.python, model, threads=setting.threads, seconds=setting.metaschedule_s
        )
    return model, None


def check(result: Result, worker: Worker, folder: Path, *, patience_s: float) -> Result:
    """Compare what a side computes with ONNX Runtime; time it alone where it is slow.

    Parameters
    ----------
    result : Result
        What is known of the side.
    worker : Worker
        Its process.
    folder : Path
        Where the outputs of all sides are kept.
    patience_s : float
        Longest time to wait for one answer.
    """
    saved = folder / f"{result.side}.npz"
    answer = worker.ask({"calls": 1, "save": str(saved)}, timeout_s=patience_s)
    result = judge(result, saved, folder / f"{REFERENCE}.npz")
    if result.cause:
        return result
    # The first call of a quick side may be slow, and the only one of a slow side has to do.
    calls_us = answer["us"]
    if calls_us[0] < ALONE_US:
        calls_us = worker.times_us(1, timeout_s=patience_s)
    if calls_us[0] < SLOW_US:
        return result
    more = worker.times_us(int(min(4, ALONE_US / calls_us[0])), timeout_s=patience_s)
    return replace(result, is_alone=True, rounds_us=(*calls_us, *more))


def judge(result: Result, found: Path, expected: Path) -> Result:
    """Return ``result`` with its error, and with the cause where that is too large.

    Parameters
    ----------
    result : Result
        What is known of the side.
    found, expected : Path
        Its outputs and those of ONNX Runtime.
    """
    if not expected.exists():
        return replace(result, cause="nothing to compare with: ONNX Runtime failed")
    outputs = npz.read(expected)
    tolerated = of_model(coarsest(output.dtype.name for output in outputs.values()))
    try:
        differences = compare(npz.read(found), outputs, rtol=tolerated)
    except InputError as error:
        return replace(result, cause=f"wrong: {error}")
    error = max(difference.error for difference in differences)
    wrong = "; ".join(
        f"output {number}: {difference.note or f'error {difference.error:.1e}'}"
        + ("" if difference.has_same_nans or difference.note else ", NaN in other places")
        for number, difference in enumerate(differences)
        if not difference.is_close
    )
    return replace(
        result,
        error=error if np.isfinite(error) else None,
        cause=f"wrong: {wrong}" if wrong else "",
    )


def time_in_turns(
    results: Mapping[str, Result], workers: Mapping[str, Worker], setting: Setting
) -> dict[str, Result]:
    """Return the results of the sides that run, with their times."""
    try:
        timings = take_turns(
            workers,
            rounds=setting.rounds,
            round_us=setting.round_us,
            pause_s=setting.pause_s,
            timeout_s=setting.patience_s,
        )
    except TuningError as error:
        cause = str(error).removeprefix("bench: ")
        return {name: replace(results[name], cause=f"not timed: {cause}") for name in workers}
    return {
        name: replace(results[name], rounds_us=timing.rounds_us) for name, timing in timings.items()
    }


def with_ratios(results: Mapping[str, Result]) -> dict[str, Result]:
    """Return the results, each with its times over those of tvmfuse.

    Rounds are compared one by one; a side alone is compared by tvmfuse's median.
    """
    ours = results.get(OURS)
    if ours is None or not ours.rounds_us:
        return dict(results)
    base = median(ours.rounds_us)

    def ratios(result: Result) -> tuple[float, ...]:
        if result.is_alone or ours.is_alone:
            return tuple(time / base for time in result.rounds_us)
        return tuple(a / b for a, b in zip(result.rounds_us, ours.rounds_us, strict=False))

    return {name: replace(result, ratios=ratios(result)) for name, result in results.items()}

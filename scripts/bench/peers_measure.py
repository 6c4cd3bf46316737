"""Check and time tvmfuse and its peers on one model; see peers.py."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import asdict, dataclass, replace
from hashlib import file_digest
from pathlib import Path
from statistics import median
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import onnx
from coverage_table import Entry, StepError, run_json, sample_all

from tvmfuse.errors import InputError, TuningError
from tvmfuse.runtime import npz
from tvmfuse.runtime.benchmark import take_turns
from tvmfuse.runtime.comparison import compare
from tvmfuse.runtime.side import Side, Worker, python_side, start
from tvmfuse.runtime.timing import quartiles

SCRIPTS = Path(__file__).parent / "peers"
OURS, REFERENCE = "tvmfuse", "onnxruntime"
TOLERANCE = 1e-2
# The others would wait for a side whose calls take longer: it is timed alone, by a few calls.
SLOW_US = 1e6
ALONE_US = 15e6


@dataclass(frozen=True)
class Setting:
    """How every side is measured.

    Parameters
    ----------
    threads, rounds : int
        Threads of each side; rounds in which they take turns.
    limit_s : float
        Longest time to wait for one answer, compiling included.
    scratch : Path
        Where models, inputs and what peers compile are kept.
    """

    threads: int
    rounds: int
    limit_s: float
    scratch: Path


@dataclass(frozen=True)
class Result:
    """What became of one side on one model.

    Parameters
    ----------
    network, side : str
        Their names.
    version : str
        What the side says that it is; "" where it was not loaded.
    error : float, optional
        max |a - b| / max |b| against ONNX Runtime, the worst of all outputs; None where
        nothing was computed, or a shape or an infinite place differs.
    cause : str
        Why it has no times; "" where it has.
    is_alone : bool
        Whether it is too slow to take turns, and was timed alone.
    rounds_us : tuple of float
        The median of each round; of a side alone, the time of each call.
    ratios : tuple of float
        Its time over that of tvmfuse, round by round: above 1 tvmfuse is faster.
    """

    network: str
    side: str
    version: str = ""
    error: float | None = None
    cause: str = ""
    is_alone: bool = False
    rounds_us: tuple[float, ...] = ()
    ratios: tuple[float, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """Return it, with medians and quartiles, as JSON-compatible data."""
        return {
            **asdict(self),
            "median_us": median(self.rounds_us) if self.rounds_us else None,
            "quartiles_us": quartiles(self.rounds_us) if self.rounds_us else None,
            "ratio": median(self.ratios) if self.ratios else None,
            "ratio_quartiles": quartiles(self.ratios) if self.ratios else None,
        }


def measure(
    entry: Entry,
    pythons: Mapping[str, Path],
    setting: Setting,
    *,
    progress: Callable[[str], None] = lambda _: None,
) -> list[Result]:
    """Check every side on one model, then time those that are right.

    Parameters
    ----------
    entry : Entry
        The model.
    pythons : Mapping of str to Path
        The interpreter of each side; ONNX Runtime, by which the others are judged, is first.
    setting : Setting
        How every side is measured.
    progress : callable
        Is told what goes on, in a few words.
    """
    model, inputs = prepare(entry, setting.scratch)
    results: dict[str, Result] = {}
    workers: dict[str, Worker] = {}
    with TemporaryDirectory() as folder, ExitStack() as running:
        for name, python in pythons.items():
            progress(f"{entry.name}: check {name}")
            try:
                given = compile_ours(model, Path(folder), setting) if name == OURS else model
            except StepError as step:
                results[name] = Result(entry.name, name, cause=f"{step.result}: {step.cause}")
                continue
            side = make_side(name, given, inputs, python=python, threads=setting.threads)
            results[name], worker = admit(
                side, entry.name, Path(folder), running=running, limit_s=setting.limit_s
            )
            if worker is not None:
                workers[name] = worker
        progress(f"{entry.name}: time {', '.join(workers)}")
        results |= time_in_turns(results, workers, setting)
    return with_ratios(results)


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
    feeds = sample_all(entry)
    npz.write(feeds, inputs)
    bound = onnx.load(entry.path)
    for value in bound.graph.input:
        if value.name in feeds:
            dims = value.type.tensor_type.shape.dim
            for dim, extent in zip(dims, feeds[value.name].shape, strict=True):
                dim.dim_value = extent
    onnx.save(bound, model)
    return model, inputs


def compile_ours(model: Path, folder: Path, setting: Setting) -> Path:
    """Compile a model by tvmfuse at zero trials; return its bundle.

    Raises
    ------
    StepError
        It did not compile.
    """
    bundle = folder / "net.tvmfuse"
    command = ("-m", "tvmfuse", "compile", model, "-o", bundle, "--json")
    run_json(command, limit_s=setting.limit_s)
    return bundle


def make_side(name: str, model: Path, inputs: Path, *, python: Path, threads: int) -> Side:
    """Return a side: one of the worker's own, or what ``peers/NAME.py`` loads."""
    script = None if name in (OURS, REFERENCE) else SCRIPTS / f"{name}.py"
    return python_side(name, model, inputs, threads=threads, python=str(python), script=script)


def admit(
    side: Side, network: str, folder: Path, *, running: ExitStack, limit_s: float
) -> tuple[Result, Worker | None]:
    """Start and check a side; leave it running, and return its process, if it may take turns."""
    result = Result(network, side.name)
    try:
        with ExitStack() as trial:
            worker, version = trial.enter_context(start(side, timeout_s=limit_s))
            result = replace(result, version=version)
            result = check(result, worker, folder, limit_s=limit_s)
            if result.cause or result.is_alone:
                return result, None
            running.enter_context(trial.pop_all())
            return result, worker
    except TuningError as error:
        return replace(result, cause=str(error).removeprefix("bench: ")), None


def check(result: Result, worker: Worker, folder: Path, *, limit_s: float) -> Result:
    """Compare what a side computes with ONNX Runtime; time it alone where it is slow.

    Parameters
    ----------
    result : Result
        What is known of the side.
    worker : Worker
        Its process.
    folder : Path
        Where the outputs of all sides are kept.
    limit_s : float
        Longest time to wait for one answer.
    """
    saved = folder / f"{result.side}.npz"
    answer = worker.ask({"calls": 1, "save": str(saved)}, timeout_s=limit_s)
    result = judge(result, saved, folder / f"{REFERENCE}.npz")
    if result.cause:
        return result
    # The first call of a quick side may be slow, and the only one of a slow side has to do.
    calls_us = answer["us"]
    if calls_us[0] < ALONE_US:
        calls_us = worker.times_us(1, timeout_s=limit_s)
    if calls_us[0] < SLOW_US:
        return result
    more = worker.times_us(int(min(4, ALONE_US / calls_us[0])), timeout_s=limit_s)
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
    try:
        differences = compare(npz.read(found), npz.read(expected), rtol=TOLERANCE)
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
        timings = take_turns(workers, rounds=setting.rounds, timeout_s=setting.limit_s)
    except TuningError as error:
        cause = str(error).removeprefix("bench: ")
        return {name: replace(results[name], cause=f"not timed: {cause}") for name in workers}
    return {
        name: replace(results[name], rounds_us=timing.rounds_us) for name, timing in timings.items()
    }


def with_ratios(results: Mapping[str, Result]) -> list[Result]:
    """Return the results, each with its times over those of tvmfuse.

    Rounds are compared one by one; a side alone is compared by tvmfuse's median.
    """
    ours = results[OURS]
    if ours.cause:
        return list(results.values())
    base = median(ours.rounds_us)

    def ratios(result: Result) -> tuple[float, ...]:
        if result.is_alone or ours.is_alone:
            return tuple(time / base for time in result.rounds_us)
        return tuple(a / b for a, b in zip(result.rounds_us, ours.rounds_us, strict=False))

    return [replace(result, ratios=ratios(result)) for result in results.values()]

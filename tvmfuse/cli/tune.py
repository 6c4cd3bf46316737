"""``tvmfuse tune``: search the kernels of a model on this machine, and keep what was measured."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from tvmfuse.cli import console
from tvmfuse.cli.options import AsJson, Database, ModelFile, Shapes, TargetName
from tvmfuse.errors import InputError

if TYPE_CHECKING:
    from tvmfuse.targets import Target
    from tvmfuse.tuning.reports import KernelReport, Report
    from tvmfuse.tuning.task import Strategy
    from tvmfuse.tuning.tuner import Status

_STRATEGIES = ("auto", "families", "metaschedule")

Seed = Annotated[int, typer.Option("--seed", help="Chooses the candidates that are tried.")]


def tune_model_file(
    model: ModelFile,
    *,
    target: TargetName = "cpu",
    shape: Shapes = [],  # noqa: B006 - Typer reads the default, nobody writes to it
    trials: Annotated[
        int | None, typer.Option("--trials", min=1, help="Stop after so many candidates.")
    ] = None,
    time: Annotated[
        str | None, typer.Option("--time", metavar="5m", help="Stop after 90s, 5m or 2h.")
    ] = None,
    until_within: Annotated[
        str | None,
        typer.Option(
            "--until-within",
            metavar="5%",
            help="Stop when no more than this share of the time is expected to be saved still.",
        ),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Measure nothing again that the store holds.")
    ] = False,
    warm: Annotated[
        bool, typer.Option("--warm", help="Time with weights in cache, as in a small model.")
    ] = False,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="|".join(_STRATEGIES),
            help="Search our spaces, and TVM's for kernels without one; ours alone; TVM's alone.",
        ),
    ] = "auto",
    learn: Annotated[
        bool,
        typer.Option(
            "--learn/--no-learn",
            help="Build and time the kernels at the end, for the cost model to learn from.",
        ),
    ] = True,
    seed: Seed = 0,
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """Search faster kernels for a model; 'tvmfuse compile' uses what was found.

    Without any budget it searches for 5 minutes. Each trial is kept as soon as it is
    measured, so it may be stopped at any moment.
    """
    from tvmfuse import targets
    from tvmfuse.calibrate import calibrated
    from tvmfuse.frontend import import_model, parse_shape
    from tvmfuse.tuning import cost_models
    from tvmfuse.tuning.budget import budget
    from tvmfuse.tuning.campaign import Settings, tune_model
    from tvmfuse.tuning.measure import Limits
    from tvmfuse.tuning.retraining import after_tuning
    from tvmfuse.tuning.sessions import open_history

    # What can be known to fail is known before the long work.
    shapes = dict(map(parse_shape, shape))
    if strategy not in _STRATEGIES:
        raise InputError(
            f"tune: --strategy is one of {', '.join(_STRATEGIES)}, but got {strategy!r}"
        )
    settings = Settings(
        budget(trials, time, until_within),
        seed=seed,
        resume=resume,
        limits=Limits(cold=not warm),
        strategy=cast("Strategy", strategy),
    )
    device = calibrated(targets.resolve(target))
    command = shlex.join(["tvmfuse", *sys.argv[1:]])
    with (
        open_history(db, device, settings, command=command) as history,
        _told_how_to_go_on(),
        console.stages() as stages,
    ):
        stages("import")
        imported = import_model(model, shapes=shapes)
        report = tune_model(
            imported,
            device,
            history,
            settings=settings,
            cost_model=cost_models.resolve(cost_models.LEARNED, device, database=db).model,
            stage=stages,
            progress=lambda status: stages.say(_line(status)),
        )
        if learn:
            stages("learn")
            learned = after_tuning(
                imported, device, database=db, command=command, prepared_s=report.first_s
            )
            report = replace(report, learned=learned)
        name = history.store.name
    if as_json:
        console.print_json("tune", _to_json(report, imported.name, device, name))
    else:
        _print(report, imported.name, device, name)


@contextmanager
def _told_how_to_go_on() -> Iterator[None]:
    try:
        yield
    except KeyboardInterrupt:
        typer.echo(
            "stopped: all trials are kept; the same command with --resume goes on, and confirms "
            "what was found",
            err=True,
        )
        raise


def _line(status: Status) -> str:
    saved_us = status.default_us - status.best_us
    if status.model_us is None:
        whole = f"{console.duration(saved_us)} of an inference saved so far"
    else:
        before = console.duration(status.model_us + saved_us)
        whole = f"an inference {before} → about {console.duration(status.model_us)}"
    return (
        f"{console.bar(status.spent)} {console.count(status.trials, 'trial')}, "
        f"{status.failures} failed; {whole}; {status.kernel}"
    )


def _to_json(report: Report, model: str, target: Target, database: str) -> dict[str, Any]:
    return {
        "model": model,
        "target": target.spec,
        "database": database,
        "trials": report.status.trials,
        "failures": report.status.failures,
        "seconds": report.seconds,
        "first_trial_seconds": report.first_s,
        "default_us": report.default_us,
        "tuned_us": report.tuned_us,
        "gain": report.gain,
        "outcome": report.outcome,
        "searched": report.searched,
        "untried": list(report.untried),
        "learned": report.learned,
        "kernels": [asdict(kernel) for kernel in report.kernels],
    }


def _print(report: Report, model: str, target: Target, database: str) -> None:
    rows = [_row(kernel) for kernel in report.kernels if kernel.trials]
    columns = (
        "kernel",
        ">uses",
        ">trials",
        ">failed",
        ">default",
        ">best",
        ">gain",
        "kept: changed",
    )
    console.print_table(f"{model} on {target.spec}", columns, rows)
    status = report.status
    console.print_text(
        f"{console.count(status.trials, 'trial')} in {report.seconds:.0f} s, "
        f"{status.failures} failed; kept in {database}"
    )
    is_changed = any(kernel.is_kept for kernel in report.kernels)
    if is_changed:
        console.print_text(
            f"the whole model: {console.duration(report.default_us or 0.0)} by default, "
            f"{console.duration(report.tuned_us or 0.0)} with the records kept: "
            f"{report.gain:.2f}× as fast"
        )
    elif report.is_finished:
        console.print_text("no candidate made the model faster: the default was best already")
    else:
        console.print_text("no candidate made the model faster so far")
    if report.untried:
        console.print_text(
            f"no time was left to try faster candidates of "
            f"{console.count(len(report.untried), 'kernel')} in the model; the same command with "
            "--resume does"
        )
    elif not report.is_finished:
        console.print_text(
            f"kernels that take {1 - report.searched:.0%} of the time have had too few trials to "
            "tell; the same command with --resume and a longer budget goes on"
        )
    if report.learned:
        console.print_text(report.learned)


def _row(kernel: KernelReport) -> tuple[object, ...]:
    return (
        kernel.name,
        kernel.uses,
        f"{kernel.trials}/{kernel.points}",
        kernel.failures,
        console.duration(kernel.default_us),
        console.duration(kernel.best_us),
        f"{kernel.gain:.2f}×",
        ", ".join(f"{name}={value}" for name, value in kernel.changed.items())
        if kernel.is_kept
        else "",
    )

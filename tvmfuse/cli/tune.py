"""``tvmfuse tune``: search the kernels of a model on this machine, and keep what was measured."""

from __future__ import annotations

import platform
import re
import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmfuse.cli import console
from tvmfuse.cli.options import AsJson, Database, ModelFile, Shapes, TargetName
from tvmfuse.errors import InputError

if TYPE_CHECKING:
    from tvmfuse.store import Session
    from tvmfuse.targets import Target
    from tvmfuse.tuning.campaign import KernelReport, Report, Settings
    from tvmfuse.tuning.tuner import Status

_UNITS = {"": 1.0, "s": 1.0, "m": 60.0, "h": 3600.0}

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
    from tvmfuse.store import open_store
    from tvmfuse.store.devices import device_of, target_key
    from tvmfuse.store.location import locate
    from tvmfuse.tuning.campaign import tune_model
    from tvmfuse.tuning.history import StoreHistory

    # What can be known to fail is known before the long work.
    shapes = dict(map(parse_shape, shape))
    settings = _settings(trials, time, until_within, seed=seed, resume=resume, cold=not warm)
    device = calibrated(targets.resolve(target))
    with (
        open_store(locate(db).database) as store,
        _told_how_to_go_on(),
        console.stages() as stages,
    ):
        stages("import")
        imported = import_model(model, shapes=shapes)
        with store.session(_session(settings)) as session:
            history = StoreHistory(store, device_of(device), target_key(device), session)
            report = tune_model(
                imported,
                device,
                history,
                settings=settings,
                stage=stages,
                progress=lambda status: stages.say(_line(status)),
            )
    if as_json:
        console.print_json("tune", _to_json(report, imported.name, device, store.name))
    else:
        _print(report, imported.name, device, store.name)


def _settings(
    trials: int | None,
    time: str | None,
    within: str | None,
    *,
    seed: int,
    resume: bool,
    cold: bool,
) -> Settings:
    from tvmfuse.tuning.campaign import Settings
    from tvmfuse.tuning.measure import Limits
    from tvmfuse.tuning.tuner import Budget

    if trials is None and time is None and within is None:
        time = "5m"
    budget = Budget(
        trials,
        None if time is None else seconds(time),
        None if within is None else share(within),
    )
    return Settings(budget, seed=seed, resume=resume, limits=Limits(cold=cold))


def seconds(text: str) -> float:
    """Read a time such as ``90s``, ``5m`` or ``2h``.

    Raises
    ------
    InputError
        It is none, or not above 0.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)([smh]?)", text.strip())
    if match is None or float(match[1]) <= 0:
        raise InputError(f"tune: --time must be like 90s, 5m or 2h, but got {text!r}")
    return float(match[1]) * _UNITS[match[2]]


def share(text: str) -> float:
    """Read a share such as ``5%``.

    Raises
    ------
    InputError
        It is none, or not between 0 and 100 %.
    """
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*%?", text.strip())
    if match is None or not 0 < float(match[1]) < 100:
        raise InputError(f"tune: --until-within must be like 5%, but got {text!r}")
    return float(match[1]) / 100


def _session(settings: Settings) -> Session:
    from tvmfuse.store import Session

    return Session(
        command=shlex.join(["tvmfuse", *sys.argv[1:]]),
        host=platform.node(),
        seed=settings.seed,
        settings=asdict(settings),
    )


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
    saved = 1.0 - status.best_us / status.default_us if status.default_us else 0.0
    return (
        f"{console.count(status.trials, 'trial')}, {status.failures} failed, "
        f"{console.duration(status.default_us)} → {console.duration(status.best_us)} "
        f"({saved:.1%} saved), {status.kernel}"
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
        "kernels": [asdict(kernel) for kernel in report.kernels],
    }


def _print(report: Report, model: str, target: Target, database: str) -> None:
    rows = [_row(kernel) for kernel in report.kernels if kernel.trials]
    columns = ("kernel", ">uses", ">trials", ">failed", ">default", ">best", "kept")
    console.print_table(f"{model} on {target.spec}", columns, rows)
    status = report.status
    console.print_text(
        f"{console.count(status.trials, 'trial')} in {report.seconds:.0f} s, "
        f"{status.failures} failed; kept in {database}"
    )
    if report.default_us is None or report.tuned_us is None:
        console.print_text("no candidate beat the default: the model is as fast as before")
        return
    console.print_text(
        f"the whole model: {console.duration(report.default_us)} by default, "
        f"{console.duration(report.tuned_us)} with the records kept"
    )


def _row(kernel: KernelReport) -> tuple[object, ...]:
    return (
        kernel.name,
        kernel.uses,
        f"{kernel.trials}/{kernel.points}",
        kernel.failures,
        console.duration(kernel.default_us),
        console.duration(kernel.best_us),
        ", ".join(f"{name}={value}" for name, value in kernel.decisions.items())
        if kernel.is_kept
        else "",
    )

"""The commands together, and what becomes of their errors."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Callable
from importlib.metadata import PackageNotFoundError, version
from typing import Annotated

import typer

from tvmfuse import __version__
from tvmfuse.cli.bench import bench_bundle
from tvmfuse.cli.bisect import bisect_model
from tvmfuse.cli.calibrate import calibrate_device
from tvmfuse.cli.compile import compile_model
from tvmfuse.cli.cost import group as cost_commands
from tvmfuse.cli.db import group as db_commands
from tvmfuse.cli.doctor import check_machine
from tvmfuse.cli.explain import explain_model
from tvmfuse.cli.patterns import group as pattern_commands
from tvmfuse.cli.run import run_bundle
from tvmfuse.cli.tune import tune_model_file
from tvmfuse.errors import TvmFuseError

OK = 0
FAILED = 1
BAD_INPUT = 2
INTERRUPTED = 130

_COMMANDS: dict[str, Callable[..., None]] = {
    "compile": compile_model,
    "explain": explain_model,
    "bisect": bisect_model,
    "run": run_bundle,
    "bench": bench_bundle,
    "tune": tune_model_file,
    "calibrate": calibrate_device,
    "doctor": check_machine,
}


def main() -> int:
    """Run the command line and return its exit code.

    0: all was done. 1: the work itself failed. 2: the input or the machine must be
    changed first. 130: interrupted. Why it was not 0 stands on standard error, in one line.
    """
    is_verbose = False

    def common(
        *,
        show_version: Annotated[bool, typer.Option("--version", help="Print versions.")] = False,
        verbose: Annotated[
            bool, typer.Option("--verbose", "-v", help="Show the traceback of an error.")
        ] = False,
    ) -> None:
        """Plan, fuse, schedule and tune models with Apache TVM."""
        nonlocal is_verbose
        is_verbose = verbose
        if show_version:
            typer.echo(_versions())
            raise typer.Exit

    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.callback(invoke_without_command=True, no_args_is_help=True)(common)
    for name, command in _COMMANDS.items():
        app.command(name)(command)
    app.add_typer(pattern_commands(), name="patterns")
    app.add_typer(cost_commands(), name="cost")
    app.add_typer(db_commands(), name="db")
    try:
        # Without standalone mode, Typer returns the code of a typer.Exit and raises the rest.
        return int(app(prog_name="tvmfuse", standalone_mode=False) or OK)
    except typer.TyperException as error:
        if not error.format_message():  # no command was given, and the help is shown already
            return BAD_INPUT
        return _fail(_usage(error), code=BAD_INPUT, show_traceback=is_verbose)
    except TvmFuseError as error:
        return _fail(str(error), code=BAD_INPUT, show_traceback=is_verbose)
    except OSError as error:
        return _fail(_told_by_system(error), code=BAD_INPUT, show_traceback=is_verbose)
    except typer.Abort:
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 - the outermost frame: whatever it is, say it in one line
        text = f"internal error: {type(error).__name__}: {error}"
        hint = "" if is_verbose else " (tvmfuse -v COMMAND shows where)"
        return _fail(text + hint, code=FAILED, show_traceback=is_verbose)


def _fail(text: str, *, code: int, show_traceback: bool) -> int:
    if show_traceback:
        traceback.print_exc()
    print("tvmfuse:", " ".join(text.split()), file=sys.stderr)  # noqa: T201
    return code


def _told_by_system(error: OSError) -> str:
    return f"{error.filename}: {error.strerror}" if error.filename else str(error)


def _usage(error: typer.TyperException) -> str:
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "tvmfuse"
    return f"{error.format_message().rstrip('.')}; see {command} --help"


def _versions() -> str:
    pair = ", ".join(f"{name} {_version(name)}" for name in ("apache-tvm", "apache-tvm-ffi"))
    return f"tvmfuse {__version__}, {pair}"


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "(not installed)"

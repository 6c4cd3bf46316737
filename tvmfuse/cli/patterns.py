"""``tvmfuse patterns``: list the catalogue of fusions, show one, test one's own."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmfuse.cli import console
from tvmfuse.cli.options import AsJson, PatternFiles
from tvmfuse.errors import PatternError

if TYPE_CHECKING:
    from tvmfuse.patterns.base import Generator
    from tvmfuse.patterns.registry import Registry
    from tvmfuse.plan import Rejection
    from tvmfuse.report.contract import Verdict


def group() -> typer.Typer:
    """Return the commands together."""
    app = typer.Typer(no_args_is_help=True, help="List the patterns, show one, test one's own.")
    app.command("ls")(list_patterns)
    app.command("show")(show_pattern)
    app.command("test")(hold_to_contract)
    return app


def registry_with(files: Sequence[Path]) -> Registry:
    """Return the patterns in use, those of some files first."""
    from tvmfuse.patterns import plugins, registry

    added = [pattern for path in files for pattern in plugins.from_file(path)]
    return registry.default().with_pattern(*added)


def dropped(rejections: Sequence[Rejection]) -> dict[str, str]:
    """Return the patterns that failed as a whole, and why: no match of theirs is left."""
    return {match.pattern: match.reason for match in rejections if not match.bindings}


def list_patterns(*, patterns: PatternFiles = [], as_json: AsJson = False) -> None:  # noqa: B006 - Typer reads the default
    """List every pattern, in the order of preference, with its source and its tests."""
    registry = registry_with(patterns)
    rows = [_row(pattern, _source(pattern)) for pattern in registry.patterns]
    if as_json:
        failed = [asdict(failure) for failure in registry.failed]
        console.print_json("patterns ls", {"patterns": rows, "failed": failed})
        return
    console.print_table(
        f"{len(rows)} patterns",
        ("pattern", "what it fuses", "family", ">cases", ">near misses", "source"),
        [
            [row[key] for key in ("name", "summary", "family", "cases", "near_misses", "source")]
            for row in rows
        ],
    )
    for failure in registry.failed:
        console.print_text(f"not loaded: {failure.name}: {failure.reason}")


def show_pattern(
    name: Annotated[str, typer.Argument(metavar="NAME", help="A name that 'patterns ls' shows.")],
    *,
    patterns: PatternFiles = [],  # noqa: B006 - Typer reads the default
    as_json: AsJson = False,
) -> None:
    """Show what a pattern matches, where it is written, and what it is tested on."""
    pattern = named(registry_with(patterns), name)
    shown = {**_row(pattern, _source(pattern)), "about": inspect.getdoc(type(pattern)) or ""}
    cases = [case.name for case in pattern.cases]
    near_misses = [case.name for case in pattern.near_misses]
    if as_json:
        console.print_json("patterns show", {**shown, "cases": cases, "near_misses": near_misses})
        return
    facts = [("family", shown["family"]), ("source", shown["source"]), ("file", shown["file"])]
    console.print_text(shown["about"] + "\n")
    console.print_table(name, ("", ""), [fact for fact in facts if fact[1]])
    tests = [("matches", case) for case in cases] + [("refuses", case) for case in near_misses]
    console.print_table("Tested on", ("", ""), tests)


def hold_to_contract(
    what: Annotated[
        list[str], typer.Argument(metavar="FILE|NAME...", help="Python files, or patterns by name.")
    ],
    *,
    dtype: Annotated[
        list[str], typer.Option("--dtype", metavar="NAME", help="May be repeated.")
    ] = ["float32"],  # noqa: B006 - Typer reads the default
    as_json: AsJson = False,
) -> None:
    """Hold patterns to their contract: matched once, right, one kernel, near misses refused."""
    from tvmfuse.report import contract
    from tvmfuse.targets import resolve

    chosen = [pattern for each in what for pattern in _chosen(each)]
    with console.stages() as begin:
        verdicts: list[Verdict] = []
        for pattern in chosen:
            begin(f"test {pattern.name}")
            verdicts += contract.verdicts(pattern, resolve("cpu"), dtypes=dtype)
    failed = [verdict for verdict in verdicts if verdict.fault]
    if as_json:
        console.print_json("patterns test", {"tests": [asdict(verdict) for verdict in verdicts]})
    else:
        _print_verdicts(verdicts)
    if failed:
        raise typer.Exit(1)


def _print_verdicts(verdicts: Sequence[Verdict]) -> None:
    run = Counter((verdict.pattern, verdict.test) for verdict in verdicts)
    failed = [verdict for verdict in verdicts if verdict.fault]
    lost = Counter((verdict.pattern, verdict.test) for verdict in failed)
    console.print_table(
        "Contract",
        ("pattern", "test", ">run", ">failed"),
        [(*key, number, lost[key] or "") for key, number in run.items()],
    )
    console.print_table(
        "Failed",
        ("pattern", "test", "case", "why"),
        [(v.pattern, v.test, v.case, v.fault) for v in failed],
    )
    console.print_text(f"{console.count(len(verdicts), 'test')}, {len(failed)} failed.")


def _chosen(what: str) -> Sequence[Generator]:
    from tvmfuse.patterns import plugins, registry

    if what.endswith(".py") or Path(what).exists():
        return plugins.from_file(Path(what))
    return (named(registry.default(), what),)


def named(registry: Registry, name: str) -> Generator:
    """Return the pattern of a name.

    Raises
    ------
    PatternError
        There is none.
    """
    for pattern in registry.patterns:
        if pattern.name == name:
            return pattern
    known = ", ".join(pattern.name for pattern in registry.patterns)
    raise PatternError(f"patterns: there is no pattern {name!r}; there are {known}")


def _row(pattern: Generator, source: str) -> dict[str, Any]:
    return {
        "name": pattern.name,
        "summary": (inspect.getdoc(type(pattern)) or "").partition("\n")[0],
        "family": getattr(pattern, "family", ""),
        "cases": len(pattern.cases),
        "near_misses": len(pattern.near_misses),
        "source": source,
        "file": _file(pattern),
    }


def _source(pattern: Generator) -> str:
    """Return who brought a pattern: tvmfuse, a package, or the code that registered it."""
    from tvmfuse.patterns import plugins, registry

    ours = registry.builtin().names
    if pattern.name in ours:
        return "tvmfuse"
    known = {p.pattern.name: p.source for p in plugins.added(taken=ours).plugins}
    return known.get(pattern.name) or _file(pattern)


def _file(pattern: Generator) -> str:
    """Return where a pattern is written; "" where it is in no file."""
    method = getattr(pattern, "graph", pattern.find)
    return str(method.__code__.co_filename) if hasattr(method, "__code__") else ""

"""``tvmfuse explain``: say what would be fused, what not, and why."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmfuse import files
from tvmfuse.cli import console
from tvmfuse.cli.options import (
    AsJson,
    CostModelName,
    Database,
    MaxMemory,
    MeasureBudget,
    ModelFile,
    PatternFiles,
    PlannerName,
    Shapes,
    TargetName,
)
from tvmfuse.cli.patterns import named, registry_with
from tvmfuse.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmfuse._pipeline import Planned
    from tvmfuse.report.explanation import Alone, Explanation, Fused, Refused
    from tvmfuse.report.near import Near

_MAX_NEAR = 20
_PICTURES = (".dot", ".mmd", ".onnx", ".json")


def explain_model(
    model: ModelFile,
    *,
    target: TargetName = "cpu",
    shape: Shapes = [],  # noqa: B006 - Typer reads the default, nobody writes to it
    why: Annotated[
        str | None, typer.Option(metavar="NODE", help="Only what concerns this node.")
    ] = None,
    near: Annotated[
        str | None,
        typer.Option(metavar="PATTERN", help="What this pattern nearly matches, and why not."),
    ] = None,
    html: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write all of it as one web page.")
    ] = None,
    graph: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Write the kernels as a picture: .dot, .mmd (Mermaid), .onnx (for Netron), or "
            ".json (a timeline for chrome://tracing).",
        ),
    ] = None,
    planner: PlannerName = "optimal",
    cost_model: CostModelName = "learned",
    measure_budget: MeasureBudget = None,
    max_memory: MaxMemory = None,
    patterns: PatternFiles = [],  # noqa: B006
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """Say what would be fused, what not, why, and what that is predicted to save."""
    from tvmfuse import _pipeline, targets
    from tvmfuse.calibrate import calibrated
    from tvmfuse.frontend import import_model, parse_shape
    from tvmfuse.report import explain
    from tvmfuse.tuning import planning

    shapes = dict(map(parse_shape, shape))
    device = calibrated(targets.resolve(target))
    planning.check(planner=planner, max_memory=max_memory, measure_budget=measure_budget)
    registry = registry_with(patterns)
    if near is not None:
        named(registry, near)
    if graph is not None and graph.suffix not in _PICTURES:
        raise InputError(f"explain: --graph takes {', '.join(_PICTURES)}, but got {graph}")
    for path in filter(None, (html, graph)):
        files.check_destination(path)
    with console.stages() as begin:
        begin("import")
        imported = import_model(model, shapes=shapes)
        begin("plan")
        options = _pipeline.Options(
            registry=registry,
            **planning.options(
                imported,
                device,
                planner=planner,
                cost_model=cost_model,
                max_memory=max_memory,
                measure_budget=measure_budget,
                db=db,
            ),
        )
        planned = _pipeline.plan(imported.module, device, options=options)
        begin("explain")
        explanation = explain.explain_planned(planned)
        if html is not None:
            _write_page(html, explanation, planned, name=imported.name, target=device.spec)
        if graph is not None:
            _write_picture(graph, planned, name=imported.name)
    if why is not None:
        explanation = explain.about(explanation, why)
    if near is not None:
        explanation = replace(explanation, near=explain.near_to(explanation, near))
    if as_json:
        about = {"model": imported.name, "target": device.spec}
        console.print_json("explain", {**about, **explanation.to_json()})
    elif near is not None:
        _print_near(f"What {near} nearly matches", explanation.near[:_MAX_NEAR])
        if not explanation.near:
            console.print_text(f"{near} nearly matches nothing here.")
    elif why is not None:
        _print_fused(explanation.fused)
        _print_alone(explanation.alone)
        _print_refused(explanation.refused)
        _print_near("Nearly matched", explanation.near[:_MAX_NEAR])
    else:
        _print(explanation, name=imported.name, target=device.spec)


def _write_page(
    path: Path, explanation: Explanation, planned: Planned, *, name: str, target: str
) -> None:
    from tvmfuse.report import html, machine, units

    text = html.page(
        explanation,
        units.units(planned),
        planned.plan,
        name=name,
        target=target,
        device=machine.describe()["processor"],
    )
    files.write_text(path, text)


def _write_picture(path: Path, planned: Planned, *, name: str) -> None:
    from tvmfuse.report import graph, trace, units

    found = units.units(planned)
    match path.suffix:
        case ".dot":
            files.write_text(path, graph.dot(found, name=name))
        case ".mmd":
            files.write_text(path, graph.mermaid(found))
        case ".json":
            files.write_text(path, json.dumps(trace.timeline(found)))
        case _:
            with files.whole_file(path) as part:
                part.write_bytes(graph.functions(found, name=name).SerializeToString())


def _print(explanation: Explanation, *, name: str, target: str) -> None:
    _print_fused(explanation.fused)
    _print_alone(explanation.alone)
    _print_near("The nearest miss of each pattern", explanation.nearest)
    for note in explanation.notes:
        console.print_text(note)
    n_groups = console.count(len(explanation.fused), "group")
    console.print_text(
        f"{name} on {target}: {explanation.n_fused_ops} of {explanation.n_ops} operators in "
        f"{n_groups}, predicted to save {console.duration(explanation.saved_us)} of "
        f"{console.duration(explanation.unfused_us)}; "
        f"{console.count(len(explanation.refused), 'other match')} not used "
        "(--why NODE tells which and why; --near PATTERN what it lacked)."
    )


def _print_fused(groups: Sequence[Fused]) -> None:
    """Print a row for each kind of group: a network repeats its blocks."""
    kinds: dict[tuple[str, str], list[Fused]] = {}
    for group in groups:
        kinds.setdefault((group.pattern, " + ".join(group.ops)), []).append(group)
    console.print_table(
        "Fused",
        (">groups", "pattern", "operators", ">fused", ">apart", ">saved", ">±", "first of them"),
        [
            (
                len(alike),
                pattern,
                ops,
                console.duration(sum(group.fused_us for group in alike)),
                console.duration(sum(group.unfused_us for group in alike)),
                console.duration(sum(group.unfused_us - group.fused_us for group in alike)),
                _doubt(alike),
                alike[0].nodes[0],
            )
            for (pattern, ops), alike in kinds.items()
        ],
    )


def _doubt(groups: Sequence[Fused]) -> str:
    """Say how far the time saved may be off; nothing where all was measured."""
    if all(group.predicted is not None for group in groups):
        return "measured"
    return console.duration(math.hypot(*(group.doubt_us for group in groups)))


def _print_alone(ops: Sequence[Alone]) -> None:
    from tvmfuse.report import explanation

    console.print_table(
        "Not fused",
        (">times", "operator", ">time", "why", "first of them"),
        [
            (
                len(alike),
                alike[0].op,
                _time(alike),
                explanation.reason(alike) or "no pattern met it",
                alike[0].node,
            )
            for alike in explanation.alike(ops)
        ],
    )


def _time(ops: Sequence[Alone]) -> str:
    known = [op.time_us for op in ops if op.time_us is not None]
    return console.duration(sum(known)) if known else ""


def _print_refused(refused: Sequence[Refused]) -> None:
    console.print_table(
        "Matches not used",
        ("pattern", "operators", "stage", ">fused", ">apart", "reason"),
        [
            (
                match.pattern,
                " + ".join(match.ops),
                match.stage,
                "" if match.fused_us is None else console.duration(match.fused_us),
                "" if match.unfused_us is None else console.duration(match.unfused_us),
                match.reason,
            )
            for match in refused
        ],
    )


def _print_near(title: str, near: Sequence[Near]) -> None:
    console.print_table(
        title,
        ("pattern", ">operators found", "up to", "why it is not used"),
        [(miss.pattern, miss.found, miss.nodes[-1], miss.condition) for miss in near],
    )

"""``tvmfuse bisect``: find the fusion that changes the answer, or slows the model."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmfuse.cli import console
from tvmfuse.cli.options import (
    AsJson,
    InputsFile,
    ModelFile,
    PatternFiles,
    Seed,
    Shapes,
    TargetName,
    Tolerated,
)
from tvmfuse.cli.patterns import registry_with
from tvmfuse.errors import TargetError
from tvmfuse.tolerance import of_model

if TYPE_CHECKING:
    from tvmfuse.plan import Group
    from tvmfuse.report.bisect import Slow, Wrong
    from tvmfuse.runtime.comparison import Difference


def bisect_model(
    model: ModelFile,
    *,
    target: TargetName = "cpu",
    shape: Shapes = [],  # noqa: B006 - Typer reads the default, nobody writes to it
    inputs: InputsFile = None,
    seed: Seed = 0,
    slow: Annotated[
        bool, typer.Option("--slow", help="Find what slows the model, not what changes it.")
    ] = False,
    rtol: Tolerated = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            metavar="FOLDER",
            help="Write a stand-alone script that shows the fault there.",
        ),
    ] = None,
    patterns: PatternFiles = [],  # noqa: B006
    as_json: AsJson = False,
) -> None:
    """Find the fusion that changes the answer; exit with 1 where there is one."""
    from tvmfuse import _pipeline, targets
    from tvmfuse.calibrate import calibrated
    from tvmfuse.frontend import import_model, parse_shape
    from tvmfuse.report import bisect
    from tvmfuse.runtime.samples import inputs_from

    shapes = dict(map(parse_shape, shape))
    device = calibrated(targets.resolve(target))
    if not device.runs_here:
        raise TargetError(f"bisect: needs a target that runs on this machine, but got {target}")
    options = _pipeline.Options(registry=registry_with(patterns))
    with console.stages() as begin:
        begin("import")
        imported = import_model(model, shapes=shapes)
        begin("plan")
        planned = _pipeline.plan(imported.module, device, options=options)
        feeds = inputs_from(inputs, imported.signature.inputs, seed=seed)
        precision = imported.signature.precision
        tolerated = of_model(precision) if rtol is None else rtol
        builds = bisect.Builds(imported, planned, device)
        begin("bisect")
        if slow:
            slowing = bisect.find_slow(builds, feeds, say=begin.say)
            culprits: Sequence[Group] = [found.groups[0] for found in slowing]
        else:
            reference = _reference(model, imported.signature, feeds)
            wrong = bisect.find_wrong(
                builds, feeds, reference=reference, rtol=tolerated, say=begin.say
            )
            culprits = wrong.culprits
        folders = []
        if output is not None and culprits:
            begin("cut out")
            folders = _cut_out(
                culprits, output, (imported, planned, device, feeds), rtol=tolerated, files=patterns
            )
    found = slowing if slow else wrong
    if as_json:
        judged = {} if slow else {"precision": precision, "rtol": tolerated}
        about = {"model": imported.name, "folders": folders, **judged}
        console.print_json("bisect", {**about, **_to_json(found)})
    elif slow:
        _print_slow(slowing)
    else:
        limit = console.limit(tolerated, precision)
        _print_wrong(wrong, n_groups=len(builds.groups), limit=limit)
    if not as_json:
        for folder in folders:
            console.print_text(f"python {folder}/reproduce.py shows it by itself.")
    if culprits:
        raise typer.Exit(1)


def _reference(model: Path, signature: Any, feeds: Any) -> Any:
    """Return what ONNX Runtime computes, where it is installed."""
    if find_spec("onnxruntime") is None:
        return None
    from tvmfuse.runtime.reference import run_onnxruntime

    names = [spec.name for spec in signature.outputs]
    return run_onnxruntime(model, names, feeds, who="bisect")


def _cut_out(
    culprits: Sequence[Group],
    output: Path,
    where: tuple[Any, Any, Any, Any],
    *,
    rtol: float,
    files: Sequence[Path],
) -> list[str]:
    from tvmfuse.report import cutout

    imported, planned, device, feeds = where
    folders = []
    for i, group in enumerate(culprits):
        candidate = group.candidate
        nodes = ", ".join(op.label for op in candidate.graph.ops)
        folder = output / str(i) if len(culprits) > 1 else output
        cutout.write(
            cutout.cut_out(imported, planned, device, candidate, feeds),
            folder,
            candidate=candidate,
            about=f"{candidate.label} [{candidate.pattern}] of {imported.name}: {nodes}",
            target=device.spec,
            rtol=rtol,
            pattern_files=files,
        )
        folders.append(str(folder))
    return folders


def _to_json(found: Wrong | Sequence[Slow]) -> dict[str, Any]:
    from tvmfuse.report.bisect import Wrong

    if not isinstance(found, Wrong):
        return {
            "slow": [
                {
                    "groups": [_group(group) for group in slow.groups],
                    "ratio": slow.ratio,
                    "low": slow.low,
                }
                for slow in found
            ]
        }
    return {
        "culprits": [_group(group) for group in found.culprits],
        "builds": found.n_builds,
        "error": {
            "fused": _worst(found.fused),
            "unfused": _worst(found.unfused),
            "culprits": _worst(found.blamed),
        },
    }


def _group(group: Group) -> dict[str, Any]:
    candidate = group.candidate
    return {
        "pattern": candidate.pattern,
        "operators": candidate.label,
        "nodes": [op.label for op in candidate.graph.ops],
        "fused_us": group.time.fused_us,
        "unfused_us": group.time.unfused_us,
    }


def _worst(differences: Sequence[Difference]) -> float | None:
    errors = [each.error for each in differences]
    worst = max(errors, default=0.0)
    return worst if worst < float("inf") else None


def _print_wrong(wrong: Wrong, *, n_groups: int, limit: str) -> None:
    rows = [
        (what, f"{max((each.error for each in differences), default=0):.2g}", _verdict(differences))
        for what, differences in (
            ("no fusion", wrong.unfused),
            ("the whole plan", wrong.fused),
            ("the culprits alone", wrong.blamed),
        )
        if differences
    ]
    title = f"Error, {limit}"
    console.print_table(title, ("with", ">max|a-b| / max|b|", "verdict"), rows)
    if not wrong.culprits:
        note = "" if all(d.is_close for d in wrong.unfused) else ", nor is it right without them"
        console.print_text(f"None of the {n_groups} groups changes the answer{note}.")
        return
    _print_groups("What changes the answer", wrong.culprits)
    console.print_text(
        f"{console.count(len(wrong.culprits), 'group')} of {n_groups}, in "
        f"{console.count(wrong.n_builds, 'build')}."
    )


def _print_slow(slowing: Sequence[Slow]) -> None:
    if not slowing:
        console.print_text("The model is not faster without any of its fusions.")
        return
    console.print_table(
        "What slows the model",
        (">takes", ">groups", "pattern", "operators", "first of them"),
        [
            (
                f"{slow.ratio:.2f}×",
                len(slow.groups),
                slow.groups[0].candidate.pattern,
                slow.groups[0].candidate.label,
                slow.groups[0].candidate.graph.ops[0].label,
            )
            for slow in slowing
        ],
    )


def _print_groups(title: str, groups: Sequence[Group]) -> None:
    console.print_table(
        title,
        ("pattern", "operators", "nodes"),
        [
            (
                group.candidate.pattern,
                group.candidate.label,
                ", ".join(dict.fromkeys(op.label for op in group.candidate.graph.ops)),
            )
            for group in groups
        ],
    )


def _verdict(differences: Sequence[Difference]) -> str:
    return "agrees" if all(each.is_close for each in differences) else "DIFFERS"

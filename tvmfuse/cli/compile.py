"""``tvmfuse compile``: a model in, a bundle out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmfuse.cli import console
from tvmfuse.cli.options import (
    AllowFamily,
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
from tvmfuse.cli.patterns import dropped, registry_with
from tvmfuse.errors import TuningError

if TYPE_CHECKING:
    from tvmfuse.bundle import Bundle
    from tvmfuse.compiled import Compiled


def compile_model(
    model: ModelFile,
    *,
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="BUNDLE", help="The directory to write.")
    ],
    target: TargetName = "cpu",
    shape: Shapes = [],  # noqa: B006 - Typer reads the default, nobody writes to it
    fusion: Annotated[
        bool, typer.Option("--fusion/--no-fusion", help="Whether to fuse operators.")
    ] = True,
    planner: PlannerName = "optimal",
    cost_model: CostModelName = "learned",
    measure_budget: MeasureBudget = None,
    max_memory: MaxMemory = None,
    patterns: PatternFiles = [],  # noqa: B006
    db: Database = None,
    allow_family: AllowFamily = False,
    require_tuned: Annotated[
        bool, typer.Option("--require-tuned", help="Fail where a kernel has no tuning record.")
    ] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Check the module that each stage returns.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Compile a model into a bundle, which 'tvmfuse run' and tvmfuse.load take."""
    from tvmfuse import _pipeline, targets
    from tvmfuse import bundle as bundles
    from tvmfuse._tvm import cxx
    from tvmfuse.calibrate import calibrated
    from tvmfuse.frontend import import_model, parse_shape
    from tvmfuse.tuning import planning
    from tvmfuse.tuning.records import kernel_records

    # What can be known to fail is known before the long work.
    shapes = dict(map(parse_shape, shape))
    planning.check(planner=planner, max_memory=max_memory, measure_budget=measure_budget)
    bundles.check_destination(output)
    cxx.compiler()
    device = calibrated(targets.resolve(target))
    registry = registry_with(patterns)
    with (
        kernel_records(db, device, allow_family=allow_family) as records,
        console.stages() as begin,
    ):
        begin("import")
        imported = import_model(model, shapes=shapes)
        options = _pipeline.Options(
            fuse=fusion,
            records=records,
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
            verify=verify,
        )
        compiled = _pipeline.build(imported, device, options=options, progress=begin)
        if require_tuned:
            _refuse_untuned(compiled)
        begin("write")
        bundle = bundles.save(compiled, output)
    if as_json:
        console.print_json("compile", _to_json(compiled, bundle))
    else:
        _print(compiled, bundle)


def _to_json(compiled: Compiled, bundle: Bundle) -> dict[str, Any]:
    return {
        "model": compiled.model_name,
        "target": compiled.target.spec,
        "precision": compiled.signature.precision,
        "bundle": str(bundle.path),
        "bytes": bundle.n_bytes,
        "groups": len(compiled.plan.groups),
        "saved_us": compiled.plan.saved_us,
        "kernels": dict(Counter(kernel.schedule for kernel in compiled.kernels)),
        "untuned": list(compiled.untuned),
        "notes": list(compiled.plan.notes),
        "fallbacks": _fallbacks(compiled),
        "dropped_patterns": dropped(compiled.plan.rejections),
        "seconds": dict(compiled.seconds),
    }


def _print(compiled: Compiled, bundle: Bundle) -> None:
    groups = Counter(group.candidate.pattern for group in compiled.plan.groups)
    schedules = Counter(kernel.schedule for kernel in compiled.kernels)
    rows = [
        ("kernels", len(compiled.kernels), _listed(schedules)),
        ("tuned", *_tuned(compiled)),
        ("fused groups", len(compiled.plan.groups), _listed(groups)),
        ("saved by fusing", console.duration(compiled.plan.saved_us), "of a run, predicted"),
        (
            "time",
            f"{sum(compiled.seconds.values()):.1f} s",
            "most in " + _longest(compiled),
        ),
        ("size", console.size(bundle.n_bytes), str(bundle.path)),
    ]
    console.print_table(f"{compiled.model_name} for {compiled.target.spec}", ("", ">", ""), rows)
    for note in compiled.plan.notes:
        console.print_text(note)
    for kernel in compiled.kernels:
        if kernel.note and kernel.schedule in ("family", "tuned"):
            console.print_text(f"{kernel.name}: {kernel.note}")
    for name, reason in dropped(compiled.plan.rejections).items():
        console.print_text(f"pattern {name} was dropped: {reason}")
    for fallback in _fallbacks(compiled):
        console.print_text("not fused after all: {pattern} ({ops}): {reason}".format(**fallback))


def _fallbacks(compiled: Compiled) -> list[dict[str, str]]:
    """Return the groups that were chosen but could not be built; their parts run instead."""
    labels = {group.candidate.bindings: group.candidate.label for group in compiled.plan.groups}
    return [
        {"pattern": match.pattern, "ops": labels.get(match.bindings, ""), "reason": match.reason}
        for match in compiled.plan.rejections
        if match.stage == "lower"
    ]


def _refuse_untuned(compiled: Compiled) -> None:
    try:
        compiled.require_tuned()
    except TuningError as error:
        typer.echo(f"tvmfuse: {error}", err=True)
        raise typer.Exit(1) from None


def _tuned(compiled: Compiled) -> tuple[str, str]:
    """Say how many of the kernels that could be tuned are, and which have defaults."""
    untuned = compiled.untuned
    n_tuned = sum(kernel.schedule == "tuned" for kernel in compiled.kernels)
    of = f"{n_tuned} of {n_tuned + len(untuned)}"
    return of, f"{len(untuned)} from defaults: {_some(untuned)}" if untuned else ""


def _some(names: Sequence[str], limit: int = 6) -> str:
    more = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {more} more" if more > 0 else "")


def _listed(counts: Mapping[Any, int]) -> str:
    ordered = sorted(counts.items(), key=lambda item: -item[1])
    return ", ".join(f"{count} {name}" for name, count in ordered)


def _longest(compiled: Compiled) -> str:
    stages = sorted(compiled.seconds.items(), key=lambda item: -item[1])[:3]
    return ", ".join(f"{name} {seconds:.1f} s" for name, seconds in stages)

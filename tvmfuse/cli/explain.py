"""``tvmfuse explain``: say what would be fused, what not, and why."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Annotated

import typer

from tvmfuse.cli import console
from tvmfuse.cli.options import AsJson, ModelFile, Shapes, TargetName

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tvmfuse.report.explain import Explanation, Fused, Refused


def explain_model(
    model: ModelFile,
    *,
    target: TargetName = "cpu",
    shape: Shapes = [],  # noqa: B006 - Typer reads the default, nobody writes to it
    why: Annotated[
        str | None, typer.Option(metavar="NODE", help="Only what concerns this node.")
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Say what would be fused, what not, why, and what that is predicted to save."""
    from tvmfuse import _pipeline, targets
    from tvmfuse.frontend import import_model, parse_shape
    from tvmfuse.report import explain

    shapes = dict(map(parse_shape, shape))
    device = targets.resolve(target)
    with console.stages() as begin:
        begin("import")
        imported = import_model(model, shapes=shapes)
        begin("plan")
        planned = _pipeline.plan(imported.module, device)
    explanation = explain.explain(planned.plan, planned.graphs)
    if why is not None:
        explanation = explain.about(explanation, why)
    if as_json:
        about = {"model": imported.name, "target": device.spec}
        console.print_json("explain", {**about, **explanation.to_json()})
    else:
        _print(explanation, name=imported.name, target=device.spec, is_detailed=why is not None)


def _print(explanation: Explanation, *, name: str, target: str, is_detailed: bool) -> None:
    _print_fused(explanation.fused)
    if is_detailed:
        _print_refused(explanation.refused)
    else:
        _print_reasons(explanation.refused)
    console.print_text(
        f"{name} on {target}: {explanation.n_fused_ops} of {explanation.n_ops} operators in "
        f"{console.count(len(explanation.fused), 'group')}, predicted to save "
        f"{console.duration(explanation.saved_us)} of a run."
    )


def _print_fused(groups: Sequence[Fused]) -> None:
    """Print a row for each kind of group: a network repeats its blocks."""
    kinds: dict[tuple[str, str], list[Fused]] = {}
    for group in groups:
        kinds.setdefault((group.pattern, " + ".join(group.ops)), []).append(group)
    console.print_table(
        "Fused",
        (">groups", "pattern", "operators", ">fused", ">apart", ">saved", "first of them"),
        [
            (
                len(alike),
                pattern,
                ops,
                console.duration(sum(group.fused_us for group in alike)),
                console.duration(sum(group.unfused_us for group in alike)),
                console.duration(sum(group.unfused_us - group.fused_us for group in alike)),
                alike[0].nodes[0],
            )
            for (pattern, ops), alike in kinds.items()
        ],
    )


def _print_reasons(refused: Sequence[Refused]) -> None:
    """Print a row for each reason, the most frequent first."""
    counts = Counter((match.pattern, match.stage, match.reason) for match in refused)
    rows = [(n, pattern, stage, why) for (pattern, stage, why), n in counts.most_common()]
    console.print_table("Not fused", (">times", "pattern", "stage", "reason"), rows)


def _print_refused(refused: Sequence[Refused]) -> None:
    rows = [(match.pattern, " + ".join(match.ops), match.stage, match.reason) for match in refused]
    console.print_table("Not fused", ("pattern", "operators", "stage", "reason"), rows)

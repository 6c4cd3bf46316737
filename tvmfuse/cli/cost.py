"""``tvmfuse cost``: train the cost model, judge it, show what drives a decision."""

from __future__ import annotations

import tomllib
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmfuse import files
from tvmfuse.cli import console
from tvmfuse.cli.options import AsJson, CostModelName, Database, ModelFile, Shapes, TargetName
from tvmfuse.errors import CostModelError

if TYPE_CHECKING:
    from tvmfuse.cost.data import Measurements
    from tvmfuse.cost.judging import ModelScore
    from tvmfuse.cost.shipped import Chosen

DataFiles = Annotated[
    list[Path],
    typer.Option(
        "--data", metavar="FILE.jsonl", help="Measured kernels; several files are of one device."
    ),
]

Split = Annotated[
    Path | None,
    typer.Option(
        "--split", metavar="FILE.toml", help="Names held_out_families, which training never sees."
    ),
]


def group() -> typer.Typer:
    """Return the commands together."""
    app = typer.Typer(no_args_is_help=True, help="Train the cost model, judge it, look inside.")
    app.command("train")(train_model)
    app.command("eval")(judge_model)
    app.command("show")(show_decision)
    return app


def train_model(
    *,
    data: DataFiles = [],  # noqa: B006 - Typer reads the default, nobody writes to it
    target: TargetName = "cpu",
    split: Split = None,
    db: Database = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Write it here, too.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Of the trees.")] = 0,
    rounds: Annotated[int, typer.Option(help="Trees of each model of the ensemble.")] = 150,
    as_json: AsJson = False,
) -> None:
    """Learn from measured kernels: of files, else of the tuning store for this device."""
    from tvmfuse import targets
    from tvmfuse.cost import examples, training
    from tvmfuse.tuning import cost_models

    if output is not None:
        files.check_destination(output)
    device = targets.resolve(target)
    measured = _read(data) or cost_models.measured(db, device)
    learnable, _ = examples.split(measured, _held_out(split))
    if not learnable:
        raise CostModelError(
            "cost train: needs measured kernels, but there are none for this device; "
            "name files by --data, or run scripts/collect_measurements.py --db"
        )
    trained = training.train(
        learnable[0].run, examples.of(learnable), seed=seed, boosting_rounds=rounds
    )
    if output is not None:
        files.write_text(output, trained.to_text())
    else:
        cost_models.keep(db, device, trained)
    rows = [
        ("kernels", trained.trained_on),
        ("models", len(trained.models)),
        ("median error, unseen architectures", _percent(trained.metrics["unseen_median_error"])),
        ("of the roofline", _percent(trained.metrics["prior_median_error"])),
        ("kept in", str(output or "the tuning store")),
    ]
    if as_json:
        about = {"trained_on": trained.trained_on, "models": list(trained.models)}
        console.print_json("cost train", {**about, "metrics": dict(trained.metrics)})
    else:
        console.print_table(trained.label, ("", ">"), rows)


def judge_model(
    *,
    data: DataFiles,
    model: CostModelName = "learned",
    target: TargetName = "cpu",
    split: Split = None,
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """Hold a cost model against measured kernels, by default of architectures held out."""
    from tvmfuse.cost import examples, judging

    measured = _read(data)
    if split is not None:
        _, measured = examples.split(measured, _held_out(split))
    if not any(found.kernels for found in measured):
        raise CostModelError("cost eval: the files hold no measured kernel to judge by")
    chosen = _resolve(model, measured[0], target=target, db=db)
    scores = judging.judge(measured, chosen.model)
    if as_json:
        console.print_json(
            "cost eval", {"model": chosen.note, "scores": [asdict(score) for score in scores]}
        )
        return
    console.print_text(chosen.note)
    _print_scores(scores)


def show_decision(
    model: ModelFile,
    *,
    node: Annotated[str, typer.Option(metavar="NODE", help="A node of the model.")],
    target: TargetName = "cpu",
    shape: Shapes = [],  # noqa: B006
    cost_model: CostModelName = "learned",
    db: Database = None,
    as_json: AsJson = False,
) -> None:
    """Show the times of the group of a node, fused and apart, and the features behind them."""
    from tvmfuse import _pipeline, targets
    from tvmfuse.calibrate import calibrated
    from tvmfuse.frontend import import_model, parse_shape
    from tvmfuse.report import decision
    from tvmfuse.tuning import cost_models

    device = calibrated(targets.resolve(target))
    chosen = cost_models.resolve(cost_model, device, database=db)
    imported = import_model(model, shapes=dict(map(parse_shape, shape)))
    options = _pipeline.Options(cost_model=chosen.model)
    planned = _pipeline.plan(imported.module, device, options=options)
    found = decision.of_node(planned, node, chosen.model, target=device)
    if as_json:
        console.print_json("cost show", {"cost_model": chosen.note, **asdict(found)})
        return
    console.print_text(chosen.note)
    for kernel in found.kernels:
        console.print_table(
            f"{kernel.label}: {console.duration(kernel.us)} ± {_percent(kernel.error)}, "
            f"by the roofline {console.duration(kernel.prior_us)}",
            ("feature", ">value", ">factor"),
            [
                (f.name, f"{f.value:g}", f"{f.factor:.2f}" if f.factor else "")
                for f in kernel.features
            ],
        )
    for note in found.notes:
        console.print_text(note)
    console.print_text(found.verdict)


def _resolve(name: str, found: Measurements, *, target: str, db: str | None) -> Chosen:
    """Return a model for the device of measurements, whatever this machine is."""
    from dataclasses import replace

    from tvmfuse import targets
    from tvmfuse.tuning import cost_models

    device = replace(targets.resolve(target or found.run.target), peaks=found.run.peaks)
    return cost_models.resolve(name, device, database=db)


def _print_scores(scores: Sequence[ModelScore]) -> None:
    console.print_table(
        "Predicted and measured",
        ("model", "family", ">kernels", ">rank", ">median error", ">noise", ">fuse or not"),
        [
            (
                score.model,
                score.model_family,
                score.kernels,
                f"{score.rank_correlation:.3f}",
                _percent(score.median_error),
                _percent(score.noise),
                f"{score.right} of {score.decisions}",
            )
            for score in scores
        ],
    )


def _read(paths: Sequence[Path]) -> list[Measurements]:
    from tvmfuse.cost import data

    return [found for path in paths for found in data.read(path)]


def _held_out(split: Path | None) -> frozenset[str]:
    if split is None:
        return frozenset()
    try:
        return frozenset(tomllib.loads(split.read_text(encoding="utf-8"))["held_out_families"])
    except (tomllib.TOMLDecodeError, KeyError) as error:
        raise CostModelError(f"cost: {split} must name held_out_families: {error}") from error


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"

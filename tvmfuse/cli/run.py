"""``tvmfuse run``: run a bundle once, and compare it with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmfuse.cli import console
from tvmfuse.cli.options import AsJson, BundlePath, InputsFile, Seed, Tolerated
from tvmfuse.errors import InputError
from tvmfuse.files import check_destination, whole_file
from tvmfuse.tolerance import of_model

if TYPE_CHECKING:
    from tvmfuse.runtime.comparison import Difference
    from tvmfuse.runtime.npz import Arrays


def run_bundle(
    bundle: BundlePath,
    *,
    inputs: InputsFile = None,
    seed: Seed = 0,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE.npz", help="Write the outputs there, by name.")
    ] = None,
    compare: Annotated[
        str | None, typer.Option(metavar="onnxruntime", help="Compare with what that computes.")
    ] = None,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="The ONNX file to compare with.")
    ] = None,
    rtol: Tolerated = None,
    as_json: AsJson = False,
) -> None:
    """Run a bundle once; with --compare, exit with 1 where it disagrees."""
    if compare not in (None, "onnxruntime"):
        raise InputError(f"run: --compare takes onnxruntime, but got {compare!r}")
    if (compare is None) != (model is None):
        raise InputError("run: a comparison needs both --compare onnxruntime and --model MODEL")
    if save is not None:
        check_destination(save)
    from tvmfuse.runtime import load
    from tvmfuse.runtime.comparison import compare as compare_outputs
    from tvmfuse.runtime.reference import run_onnxruntime
    from tvmfuse.runtime.samples import inputs_from

    with console.stages() as begin:
        begin("load")
        session = load(bundle)
        feeds = inputs_from(inputs, session.inputs, seed=seed)
        begin("run")
        names = [spec.name for spec in session.outputs]
        outputs = dict(zip(names, session.run(names, feeds), strict=True))
        differences: tuple[Difference, ...] = ()
        precision = session.signature.precision
        tolerated = of_model(precision) if rtol is None else rtol
        if model is not None:
            begin("run onnxruntime")
            reference = run_onnxruntime(model, names, feeds, who="run")
            differences = compare_outputs(outputs, reference, rtol=tolerated)
    if save is not None:
        from tvmfuse.runtime import npz

        with whole_file(save) as part:
            npz.write(outputs, part)
    if as_json:
        found = _to_json(outputs, differences, rtol=tolerated, precision=precision)
        console.print_json("run", found)
    else:
        _print(outputs, differences, limit=console.limit(tolerated, precision))
    if not all(difference.is_close for difference in differences):
        raise typer.Exit(1)


def _to_json(
    outputs: Arrays, differences: Sequence[Difference], *, rtol: float, precision: str
) -> dict[str, Any]:
    rows = [
        {"name": name, "shape": list(array.shape), "dtype": array.dtype.name}
        for name, array in outputs.items()
    ]
    for row, difference in zip(rows, differences, strict=False):
        row["error"] = difference.error if difference.error < float("inf") else None
        row["same_nans"] = difference.has_same_nans
        row["close"] = difference.is_close
        row["note"] = difference.note
    agrees = all(each.is_close for each in differences)
    compared = {"precision": precision, "rtol": rtol, "agrees": agrees}
    return {"outputs": rows, **(compared if differences else {})}


def _print(outputs: Arrays, differences: Sequence[Difference], *, limit: str) -> None:
    if not differences:
        rows = [(name, _shape(array)) for name, array in outputs.items()]
        console.print_table("Outputs", ("output", "type"), rows)
        return
    console.print_table(
        f"Compared with ONNX Runtime, {limit}",
        ("output", "type", ">max|a-b| / max|b|", "NaN", "verdict"),
        [
            (
                each.name,
                _shape(outputs[each.name]),
                f"{each.error:.2g}",
                "same places" if each.has_same_nans else "other places",
                "agrees" if each.is_close else f"DIFFERS {each.note}",
            )
            for each in differences
        ],
    )


def _shape(array: Any) -> str:
    return f"{array.dtype}[{', '.join(map(str, array.shape))}]"

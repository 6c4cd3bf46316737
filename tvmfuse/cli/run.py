"""``tvmfuse run``: run a bundle once, and compare it with ONNX Runtime."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmfuse.cli import console
from tvmfuse.cli.options import AsJson, BundlePath, InputsFile, Seed
from tvmfuse.errors import InputError

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
    rtol: Annotated[
        float, typer.Option(help="Largest max|a-b| / max|b| of an output that passes.")
    ] = 1e-3,
    as_json: AsJson = False,
) -> None:
    """Run a bundle once; with --compare, exit with 1 where it disagrees."""
    if compare not in (None, "onnxruntime"):
        raise InputError(f"run: --compare takes onnxruntime, but got {compare!r}")
    if (compare is None) != (model is None):
        raise InputError("run: a comparison needs both --compare onnxruntime and --model MODEL")
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
        if model is not None:
            begin("run onnxruntime")
            reference = run_onnxruntime(model, names, feeds, who="run")
            differences = compare_outputs(outputs, reference, rtol=rtol)
    if save is not None:
        from tvmfuse.runtime import npz

        npz.write(outputs, save)
    if as_json:
        console.print_json("run", _to_json(outputs, differences, rtol=rtol))
    else:
        _print(outputs, differences, rtol=rtol)
    if not all(difference.is_close for difference in differences):
        raise typer.Exit(1)


def _to_json(outputs: Arrays, differences: Sequence[Difference], *, rtol: float) -> dict[str, Any]:
    rows = [
        {"name": name, "shape": list(array.shape), "dtype": array.dtype.name}
        for name, array in outputs.items()
    ]
    for row, difference in zip(rows, differences, strict=False):
        row["error"] = difference.error if difference.error < float("inf") else None
        row["same_nans"] = difference.has_same_nans
        row["close"] = difference.is_close
        row["note"] = difference.note
    compared = {"rtol": rtol, "agrees": all(each.is_close for each in differences)}
    return {"outputs": rows, **(compared if differences else {})}


def _print(outputs: Arrays, differences: Sequence[Difference], *, rtol: float) -> None:
    if not differences:
        rows = [(name, _shape(array)) for name, array in outputs.items()]
        console.print_table("Outputs", ("output", "type"), rows)
        return
    console.print_table(
        f"Compared with ONNX Runtime, at most {rtol:g} apart",
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

"""``tvmfuse bench``: time a bundle, and what it is compared with."""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmfuse.cli import console
from tvmfuse.cli.options import AsJson, BundlePath, InputsFile, Seed
from tvmfuse.errors import InputError

if TYPE_CHECKING:
    from tvmfuse.runtime.side import Side

_PEERS = ("onnxruntime",)


def bench_bundle(
    bundle: BundlePath,
    *,
    model: Annotated[
        Path | None, typer.Option(metavar="MODEL", help="The ONNX file, for the peers.")
    ] = None,
    peers: Annotated[
        str, typer.Option(metavar="NAME,...", help="What to compare with, given a --model.")
    ] = ",".join(_PEERS),
    threads: Annotated[
        int, typer.Option(min=0, help="Threads for every side; 0 for one on each core.")
    ] = 0,
    rounds: Annotated[
        int, typer.Option(min=1, help="Rounds, in each of which all sides run.")
    ] = 15,
    inputs: InputsFile = None,
    seed: Seed = 0,
    as_json: AsJson = False,
) -> None:
    """Time a bundle against its peers: each in its own process, in turns, equally many threads."""
    names = [name for name in peers.split(",") if name] if model is not None else []
    _check(model, names)
    from tvmfuse import bundle as bundles
    from tvmfuse.report import machine
    from tvmfuse.runtime import npz
    from tvmfuse.runtime.benchmark import alternate
    from tvmfuse.runtime.samples import inputs_from

    missing = [name for name in names if importlib.util.find_spec(name) is None]
    about = machine.describe()
    threads = threads or about["cores"]
    with console.stages() as begin, tempfile.TemporaryDirectory() as scratch:
        begin("check the bundle")
        found = bundles.read(bundle)
        file = Path(scratch) / "inputs.npz"
        npz.write(inputs_from(inputs, found.signature.inputs, seed=seed), file)
        models = {"tvmfuse": bundle, **{name: model for name in names if name not in missing}}
        sides = _sides(models, file, threads=threads)
        result = alternate(sides, rounds=rounds, progress=begin).to_json()
    if as_json:
        result_json = {"machine": about, "threads": threads, "sides": result, "missing": missing}
        console.print_json("bench", result_json)
    else:
        _print(result, missing, machine=about, threads=threads)


def _check(model: Path | None, peers: Sequence[str]) -> None:
    for name in peers:
        if name not in _PEERS:
            raise InputError(f"bench: the known peers are {', '.join(_PEERS)}, but got {name!r}")
    if model is not None and not model.is_file():
        raise InputError(f"bench: there is no model file {model}")


def _sides(models: Mapping[str, Path | None], inputs: Path, *, threads: int) -> list[Side]:
    from tvmfuse.runtime.side import python_side

    return [
        python_side(name, path, inputs, threads=threads)
        for name, path in models.items()
        if path is not None
    ]


def _print(
    rows: Sequence[Mapping[str, Any]],
    missing: Sequence[str],
    *,
    machine: Mapping[str, Any],
    threads: int,
) -> None:
    cores = console.count(machine["cores"], "core")
    each = console.count(threads, "thread")
    n_rounds = console.count(len(rows[0]["rounds_us"]), "round")
    title = (
        f"{machine['processor']}, {cores}, load {machine['load']}; {each} each, "
        f"medians of {n_rounds}"
    )
    console.print_table(
        title,
        ("side", "version", ">median", ">quartiles", ">tvmfuse takes", ">quartiles"),
        [
            (
                row["side"],
                row["version"],
                console.duration(row["median_us"]),
                console.duration(*row["quartiles_us"]),
                "" if row is rows[0] else f"{row['ratio']:.2f}×",
                "" if row is rows[0] else " – ".join(f"{q:.2f}" for q in row["ratio_quartiles"]),
            )
            for row in rows
        ],
    )
    for name in missing:
        console.print_text(f"{name} is not installed, so it was left out: pip install {name}")

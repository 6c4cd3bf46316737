"""Options that several commands share, so that they are spelled alike everywhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from tvmfuse.tolerance import TOLERANCES

ModelFile = Annotated[Path, typer.Argument(metavar="MODEL", help="An ONNX file.")]

BundlePath = Annotated[
    Path, typer.Argument(metavar="BUNDLE", help="A directory that 'tvmfuse compile' wrote.")
]

TargetName = Annotated[
    str,
    typer.Option(
        "--target",
        metavar="NAME",
        help="cpu, or cpu:NAME, cuda:ARCH, metal:CHIP: cpu:x86-64-v3, cuda:sm_80, metal:m1.",
    ),
]

Shapes = Annotated[
    list[str],
    typer.Option(
        "--shape",
        metavar="NAME=1,3,224,224",
        help="Shape of an input whose extents the model leaves open; may be repeated.",
    ),
]

Tolerated = Annotated[
    float | None,
    typer.Option(
        "--rtol",
        min=0,
        metavar="SHARE",
        help="Largest max|a-b| / max|b| of an output that passes; by default what the type that "
        "the model computes in allows: "
        + ", ".join(f"{each.model:g} for {dtype}" for dtype, each in TOLERANCES.items())
        + ".",
    ),
]

PlannerName = Annotated[
    str,
    typer.Option(
        "--planner",
        metavar="NAME",
        help="How to choose: optimal, or to compare none, fuse-ops (TVM's), saved-bytes "
        "(Inductor's), saved-time (XLA's), everything.",
    ),
]

CostModelName = Annotated[
    str,
    typer.Option(
        "--cost-model",
        metavar="learned|prior|FILE",
        help="What predicts times: learned from measurements, the roofline, or a trained file.",
    ),
]

MeasureBudget = Annotated[
    str | None,
    typer.Option(
        "--measure-budget",
        metavar="TIME",
        help="Measure candidates whose gain is in doubt for so long: 30s, 2m.",
    ),
]

MaxMemory = Annotated[
    str | None,
    typer.Option(
        "--max-memory",
        metavar="SIZE",
        help="What values between kernels may take at any time: 512KiB, 64MiB, 2GiB.",
    ),
]

InputsFile = Annotated[
    Path | None,
    typer.Option("--inputs", metavar="FILE.npz", help="Inputs by name; made up where not given."),
]

Database = Annotated[
    str | None,
    typer.Option(
        "--db",
        envvar="TVMFUSE_DB",
        metavar="FILE|URL",
        help="Tuning store; else the nearest tuning_logs/ upward, else the user's data folder.",
    ),
]

AllowFamily = Annotated[
    bool,
    typer.Option(
        "--allow-family", help="Use records of other devices of the same family, and say so."
    ),
]

Seed = Annotated[int, typer.Option("--seed", min=0, help="Chooses the inputs that are made up.")]

PatternFiles = Annotated[
    list[Path],
    typer.Option(
        "--patterns",
        metavar="FILE.py",
        help="A Python file that gives patterns to tvmfuse.register; may be repeated.",
    ),
]

AsJson = Annotated[bool, typer.Option("--json", help="Print the result as JSON, and nothing else.")]

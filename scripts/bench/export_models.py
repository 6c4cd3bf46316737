"""Export the benchmark networks of ``networks.py`` as ONNX files.

The plain names come from torch's present exporter, which folds batch
normalisation; a name that ends in ``_bn`` comes from its older one, which here
keeps the BatchNormalization nodes. The two write different graphs, and both kinds
of file are in use. A file younger than these scripts is kept: an interrupted run goes
on where it stopped.

Needs the packages of ``requirements.txt`` beside this file::

    python scripts/bench/export_models.py --into models/bench
"""

from __future__ import annotations

import argparse
import warnings
from collections.abc import Sequence
from pathlib import Path

import networks
import torch

KEEPS_BATCH_NORM = "_bn"
NAMES = (*networks.BUILDERS, *(name + KEEPS_BATCH_NORM for name in ("resnet18", "mobilenetv2")))


def main(argv: Sequence[str] | None = None) -> None:
    """Export the networks named on the command line, or all of them."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--into", type=Path, required=True, metavar="DIR")
    args = parser.parse_args(argv)
    unknown = sorted(set(args.names) - set(NAMES))
    if unknown:
        parser.error(f"unknown network {', '.join(unknown)}: choose from {', '.join(NAMES)}")
    # The older exporter is meant; its warning says that there is a newer one.
    warnings.filterwarnings("ignore", "You are using the legacy", DeprecationWarning)
    for name in args.names or NAMES:
        path = args.into / f"{name}.onnx"
        if not is_current(path):
            export(name, path)
        print(f"{path}  {path.stat().st_size / 1e6:.1f} MB", flush=True)


def is_current(path: Path) -> bool:
    """Whether a file is there, and younger than what writes it."""
    sources = (Path(__file__), Path(networks.__file__))
    youngest = max(source.stat().st_mtime for source in sources)
    return path.exists() and path.stat().st_mtime > youngest


def export(name: str, path: Path) -> None:
    """Write the network called ``name`` to ``path``.

    The file appears whole or not at all.
    """
    network = networks.build(name.removesuffix(KEEPS_BATCH_NORM))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(".partial")
    if name.endswith(KEEPS_BATCH_NORM):
        options = {
            "dynamo": False,
            "training": torch.onnx.TrainingMode.PRESERVE,
            "do_constant_folding": False,
            "opset_version": 17,
        }
    else:
        options = {"dynamo": True, "external_data": False, "opset_version": 18}
    torch.onnx.export(
        network.module,
        network.inputs,
        partial,
        input_names=network.input_names,
        output_names=("output",),
        verbose=False,
        **options,
    )
    partial.replace(path)


if __name__ == "__main__":
    main()

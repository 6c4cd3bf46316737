"""Do the main job on a real model, one command after another.

Each command is shown before it runs, so that the output can be read as a guide.
The first one that fails ends the run with its exit code.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import fetch_models


def commands(model: Path, shapes: dict[str, tuple[int, ...]]) -> tuple[tuple[str, ...], ...]:
    """Return the command lines that take the model file ``model`` all the way.

    Parameters
    ----------
    model : Path
        An ONNX file.
    shapes : dict of str to tuple of int
        Shapes that bind the dynamic dimensions of its inputs.
    """
    bundle = str(model.with_suffix(".tvmfuse"))
    source = str(model)
    shape = tuple(
        word
        for name, extents in shapes.items()
        for word in ("--shape", f"{name}={','.join(map(str, extents))}")
    )
    return (
        ("tvmfuse", "calibrate"),
        ("tvmfuse", "doctor"),
        ("tvmfuse", "compile", source, *shape, "-o", bundle),
        ("tvmfuse", "explain", source, *shape),
        ("tvmfuse", "run", bundle, "--compare", "onnxruntime", "--model", source),
        ("tvmfuse", "bench", bundle, "--model", source),
    )


def main(argv: Sequence[str] | None = None) -> int:
    """Fetch the models of tier ``run`` and run the commands on each; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--into", type=Path, default=Path("models"), metavar="DIR")
    into = parser.parse_args(argv).into
    started = time.monotonic()
    options = ("--tier", "run", "--into", str(into))
    script = ("python", "scripts/fetch_models.py", *options)
    if code := show(script, (sys.executable, fetch_models.__file__, *options)):
        return code
    for model in fetch_models.choose(fetch_models.read_models(), (), tier="run"):
        for command in commands(model.path(into), model.shapes):
            if code := show(command, (sys.executable, "-m", *command)):
                return code
    print(f"\nAll done in {time.monotonic() - started:.0f} s.")
    return 0


def show(words: Sequence[str], command: Sequence[str]) -> int:
    """Print ``words`` as a shell would read them, run ``command``, return its exit code."""
    print(f"\n$ {shlex.join(words)}", flush=True)
    return subprocess.run(command, check=False).returncode


if __name__ == "__main__":
    sys.exit(main())

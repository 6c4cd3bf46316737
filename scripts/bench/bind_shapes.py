"""Write the networks of the bench tier with their open extents bound; print their paths.

What takes ONNX files by themselves, as ``scripts/tune_cpu.py`` does, then needs no shapes::

    python scripts/bench/bind_shapes.py --models models/bench --models models --into build/bound
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from engine import prepare
from peers import find


def main(argv: Sequence[str] | None = None) -> int:
    """Write what is not there yet; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="instead of the whole tier")
    parser.add_argument(
        "--models", type=Path, action="append", required=True, metavar="DIR", help="may be repeated"
    )
    parser.add_argument("--into", type=Path, required=True, metavar="DIR")
    args = parser.parse_args(argv)
    for entry in find(args.models, args.names, tier=None if args.names else "bench"):
        print(prepare(entry, args.into)[0], flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

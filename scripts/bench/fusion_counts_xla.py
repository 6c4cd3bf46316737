"""Print how many kernels XLA makes of an ONNX model: fusions, loops and library calls.

Runs in the environment of the peer ``xla``, as ``fusion_counts_xla.py MODEL INPUTS.npz``.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

import numpy as np

# What the entry computation of the optimised program lists and no processor time goes to.
_FREE = frozenset(
    {
        *("after-all", "bitcast", "constant", "get-tuple-element", "iota", "parameter"),
        *("partition-id", "replica-id", "tuple"),
    }
)
_INSTRUCTION = re.compile(r"^\s+(?:ROOT )?%?[\w.-]+ = .*?[\s})\]]([a-z][a-z0-9-]*)\(")


def count(program: str) -> int:
    """Count the instructions that do work in the entry of an optimised HLO program."""
    lines = iter(program.splitlines())
    entry = []
    for line in lines:
        if line.startswith("ENTRY"):
            break
    for line in lines:
        if line.startswith("}"):
            break
        entry.append(line)
    found = (_INSTRUCTION.match(line) for line in entry)
    return sum(match[1] not in _FREE for match in found if match)


def main(model: str, inputs: str) -> None:
    """Compile a model for inputs of the shapes in a file, and print the count."""
    sys.path.append(str(Path(__file__).parent / "peers"))
    import xla  # there is jax in the environment of the peer only

    with np.load(inputs) as feeds:
        print(count(xla.compiled(model, dict(feeds)).as_text()))


if __name__ == "__main__":
    main(*sys.argv[1:])

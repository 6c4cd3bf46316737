"""A process that tunes a small model, and says when a trial is safe.

Arguments: the database, the seed, and whether to resume (0 or 1).
"""

from __future__ import annotations

import sys

import numpy as np

import tvmfuse
from tvmfuse._tvm import relax

_TRIALS = 24


def model() -> object:
    """Return a matrix product."""
    weight = np.random.default_rng(0).standard_normal((24, 48)).astype("float32")
    x = relax.Var("x", relax.TensorType((32, 24), "float32"))
    builder = relax.BlockBuilder()
    with builder.function("main", [x]):
        with builder.dataflow():
            y = builder.emit_output(relax.op.matmul(x, relax.const(weight)))
        builder.emit_func_output(y)
    return builder.get()


def main() -> None:
    """Tune, and print the number of trials that are safe."""
    database, seed, resume = sys.argv[1], int(sys.argv[2]), bool(int(sys.argv[3]))
    print("ready", flush=True)
    tvmfuse.tune(
        model(),
        trials=_TRIALS,
        db=database,
        seed=seed,
        resume=resume,
        progress=lambda status: print(status.trials, flush=True),
    )
    print("done", flush=True)


if __name__ == "__main__":
    main()

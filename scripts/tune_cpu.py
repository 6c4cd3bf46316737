"""Tune models on the CPU of this machine, one after the other.

    python scripts/tune_cpu.py MODEL... [--time 5m] [--trials N] [--until-within 5%] [--resume]

Every option of ``tvmfuse tune`` may follow the models, and holds for each of them. It may be
interrupted at any moment, and goes on with ``--resume``. What was found is kept in the store
that ``--db`` or TVMFUSE_DB names, else in ``tuning_logs/``; ``tvmfuse compile`` uses it.
"""

from __future__ import annotations

import subprocess
import sys


def main(arguments: list[str]) -> int:
    """Tune each model; return the first exit code that is not 0."""
    n_models = next((i for i, a in enumerate(arguments) if a.startswith("-")), len(arguments))
    models, options = arguments[:n_models], arguments[n_models:]
    if not models:
        print(__doc__, file=sys.stderr)
        return 2
    command = (sys.executable, "-m", "tvmfuse", "tune", "--target", "cpu")
    for model in models:
        print(f"== {model}", file=sys.stderr, flush=True)
        try:
            code = subprocess.run((*command, model, *options), check=False).returncode
        except KeyboardInterrupt:
            return 130  # the command has said what was kept
        if code:
            return code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

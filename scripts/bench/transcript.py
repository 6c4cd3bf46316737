"""Write down what ``make run`` shows, for README.

Names of folders of this machine are left out::

    python scripts/bench/transcript.py --models models
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

HERE = Path(__file__).parent
WIDTH = 100


def transcript(models: Path) -> str:
    """Run the main job and return what it printed."""
    environment = {**os.environ, "COLUMNS": str(WIDTH), "NO_COLOR": "1"}
    line = [sys.executable, str(HERE.parent / "run.py"), "--into", str(models)]
    done = subprocess.run(
        line,
        env=environment,
        check=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    shown = done.stdout.replace(f"{HERE.parent.parent}/", "").replace(str(Path.home()), "~")
    return "\n".join(text.rstrip() for text in shown.splitlines()).strip()


def main(argv: Sequence[str] | None = None) -> int:
    """Write the transcript; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--models", type=Path, required=True, metavar="DIR")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    args = parser.parse_args(argv)
    shown = transcript(args.models)
    args.results.mkdir(exist_ok=True, parents=True)
    text = f"*{date.today().isoformat()}*\n\n```text\n{shown}\n```\n"
    (args.results / "transcript.md").write_text(text, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

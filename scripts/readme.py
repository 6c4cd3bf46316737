"""Put measured tables and the transcript of ``make run`` into README.

Numbers in README are never typed: each block between ``<!-- begin NAME -->`` and
``<!-- end NAME -->`` is what a script wrote into ``scripts/bench/results/NAME.md``::

    python scripts/readme.py            # rewrite README
    python scripts/readme.py --check    # exit with 1 where it is not up to date
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).parent.parent
RESULTS = ROOT / "scripts" / "bench" / "results"
_BLOCK = re.compile(r"(<!-- begin (\w+) -->\n).*?(<!-- end \2 -->)", re.DOTALL)


def filled(text: str, results: Path) -> str:
    """Return ``text`` with every block replaced by its file in ``results``."""

    def block(match: re.Match[str]) -> str:
        file = results / f"{match[2]}.md"
        content = file.read_text(encoding="utf-8").strip() + "\n" if file.is_file() else ""
        return f"{match[1]}{content}{match[3]}"

    return _BLOCK.sub(block, text)


def main(argv: Sequence[str] | None = None) -> int:
    """Rewrite or check README; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    parser.add_argument("--readme", type=Path, default=ROOT / "README.md")
    parser.add_argument("--results", type=Path, default=RESULTS)
    args = parser.parse_args(argv)
    text = args.readme.read_text(encoding="utf-8")
    new = filled(text, args.results)
    if args.check:
        if new != text:
            print(f"{args.readme}: not what {args.results} says; run python scripts/readme.py")
        return int(new != text)
    args.readme.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

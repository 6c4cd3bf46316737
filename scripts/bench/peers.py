"""Time every peer beside tvmfuse: the same model, inputs and number of threads.

Each peer has an environment of its own, made here from PyPI, and a process of its
own; the processes take turns. What a peer computes is compared with ONNX Runtime
before it is timed. What fails, is wrong or cannot be had is in the table, with the
cause. Dynamic extents of a model are bound for all sides alike::

    python scripts/bench/peers.py --models models/bench --models models resnet18 ppocr_cls
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from datetime import date
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import environment
import peers_table
from coverage_table import Entry, read_entries
from peers_measure import OURS, REFERENCE, SCRIPTS, Result, Setting, measure

from tvmfuse.report import machine

HERE = Path(__file__).parent
ENVIRONMENTS = HERE.parents[1] / ".venv-peers"

# In the order of the table. What has no requirements beside its script runs in ours.
SIDES = {
    OURS: {"title": "tvmfuse", "threads": "TVM_NUM_THREADS"},
    REFERENCE: {"title": "ONNX Runtime", "threads": "intra_op_num_threads"},
    "openvino": {"title": "OpenVINO", "threads": "INFERENCE_NUM_THREADS"},
    "torch": {"title": "torch.compile", "threads": "torch.set_num_threads"},
    "xla": {"title": "XLA", "threads": "it has no knob; its process is pinned to as many cores"},
    "iree": {"title": "IREE", "threads": "--task_topology_group_count"},
    "tvm": {"title": "TVM, default pipeline", "threads": "TVM_NUM_THREADS"},
}
NOT_MEASURED = {
    "MetaSchedule": (
        "TVM's tuner (AutoTVM and Ansor left TVM before 0.27) replays over 2,500 traces for each "
        "kernel before it measures the first: hours for one of these networks."
    ),
    "TensorFlow": "It reads no ONNX file, and the networks here have no twin in it.",
}


def find(folders: Sequence[Path], names: Sequence[str]) -> tuple[Entry, ...]:
    """Return the models of ``models.toml`` that lie in one of the folders.

    Parameters
    ----------
    folders : sequence of Path
        Where two hold a model, the first one's is taken.
    names : sequence of str
        The models wanted; all when there is none.

    Raises
    ------
    SystemExit
        A name has no file.
    """
    found: dict[str, Entry] = {}
    for folder in folders:
        for entry in read_entries(folder, folder):
            if entry.path.is_file():
                found.setdefault(entry.name, entry)
    missing = [name for name in names if name not in found]
    if missing or not found:
        places = ", ".join(map(str, folders))
        raise SystemExit(f"peers: no {', '.join(missing) or 'model'} of models.toml in {places}")
    return tuple(found[name] for name in names or found)


def make_environments(names: Sequence[str], into: Path) -> tuple[dict[str, Path], dict[str, str]]:
    """Return the interpreters of the sides, and why those that are missing have none."""
    pythons, missing = {}, {}
    for name in names:
        requirements = SCRIPTS / f"{name}.txt"
        pythons[name] = Path(sys.executable)
        if not requirements.exists():
            continue
        say(f"environment of {name}")
        try:
            pythons[name] = environment.make(name, requirements, into=into)
        except environment.PipError as error:
            del pythons[name]
            missing[name] = f"not installed: {error}"
    return pythons, missing


def run(args: argparse.Namespace) -> dict[str, Any]:
    """Measure what the command line asks for; return the report."""
    names = [REFERENCE, OURS, *(name for name in args.peers if name not in (OURS, REFERENCE))]
    entries = find(args.models, args.names)
    pythons, missing = make_environments(names, args.environments)
    load_before = machine.describe()["load"]
    rows: list[Result] = []
    with ExitStack() as stack:
        scratch = args.scratch or Path(stack.enter_context(TemporaryDirectory()))
        setting = Setting(args.threads, args.rounds, args.limit, scratch.resolve())
        for entry in entries:
            rows += measure(entry, pythons, setting, progress=say)
            rows += [Result(entry.name, name, cause=cause) for name, cause in missing.items()]
    about = machine.describe()
    return {
        "date": date.today().isoformat(),
        "machine": about,
        "load": [load_before, about["load"]],
        "threads": args.threads,
        "rounds": args.rounds,
        "sides": {name: about for name, about in SIDES.items() if name in names},
        "rows": [row.to_json() for row in rows],
        "not_measured": NOT_MEASURED,
    }


def say(line: str) -> None:
    """Report progress beside the results, which go to standard output."""
    print(line, file=sys.stderr, flush=True)


def peer_names(text: str) -> list[str]:
    """Return the peers of a list with commas."""
    names = text.split(",")
    for name in names:
        if name not in SIDES:
            raise argparse.ArgumentTypeError(f"choose from {', '.join(SIDES)}, not {name!r}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the results and print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all when none is given")
    parser.add_argument(
        "--models", type=Path, action="append", required=True, metavar="DIR", help="may be repeated"
    )
    parser.add_argument("--peers", type=peer_names, default=list(SIDES), metavar="NAME,...")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--limit", type=float, default=600, metavar="SECONDS", help="per answer")
    parser.add_argument("--results", type=Path, default=HERE / "results", metavar="DIR")
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, metavar="DIR")
    parser.add_argument(
        "--scratch", type=Path, metavar="DIR", help="keep what peers compile, for the next call"
    )
    args = parser.parse_args(argv)
    report = run(args)
    args.results.mkdir(exist_ok=True, parents=True)
    text = json.dumps(report, indent=1) + "\n"
    (args.results / "peers.json").write_text(text, encoding="utf-8")
    (args.results / "peers.md").write_text(peers_table.markdown(report), encoding="utf-8")
    print(peers_table.markdown(report))
    return 0


if __name__ == "__main__":
    sys.exit(main())

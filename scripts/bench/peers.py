"""Time every peer beside tvmfuse: the same model, inputs and number of threads.

Each peer has an environment of its own, made here from PyPI, and a process of its
own; the processes take turns. What a peer computes is compared with ONNX Runtime
before it is timed. What fails, is wrong or cannot be had is in the table, with the
cause. Dynamic extents of a model are bound for all sides alike::

    python scripts/bench/peers.py --models models/bench --models models resnet18 ppocr_cls
    python scripts/bench/peers.py --models models/bench mobilenetv2 \
        --db tuning_logs/tvmfuse.db --metaschedule 600 --metaschedule-on mobilenetv2
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import campaign
import peers_table
from coverage_table import Entry, read_entries
from engine import measure
from outcome import Result, Setting
from sides import (
    ENVIRONMENTS,
    METASCHEDULE,
    OURS,
    PEERS,
    REFERENCE,
    TUNED,
    sides_json,
    with_environments,
)

NAME = "peers"


def find(
    folders: Sequence[Path], names: Sequence[str], *, tier: str | None = None
) -> tuple[Entry, ...]:
    """Return the models of ``models.toml`` that lie in one of the folders.

    Parameters
    ----------
    folders : sequence of Path
        Where two hold a model, the first one's is taken.
    names : sequence of str
        The models wanted; all when there is none.
    tier : str, optional
        Where given, the models of this tier are wanted, and each must be there.

    Raises
    ------
    SystemExit
        A name has no file.
    """
    found: dict[str, Entry] = {}
    if tier is not None:
        listed = read_entries(folders[0], folders[0])
        names = [entry.name for entry in listed if tier in entry.tiers]
    for folder in folders:
        for entry in read_entries(folder, folder):
            if entry.path.is_file():
                found.setdefault(entry.name, entry)
    missing = [name for name in names if name not in found]
    if missing or not found:
        places = ", ".join(map(str, folders))
        raise SystemExit(f"bench: no {', '.join(missing) or 'model'} of models.toml in {places}")
    return tuple(found[name] for name in names or found)


def chosen(args: argparse.Namespace) -> tuple[list[str], dict[str, str]]:
    """Return the sides to measure, and why the others are not."""
    left_out = {}
    if args.db is None:
        left_out[TUNED] = "no store of tuning records was given (--db)."
    if not args.metaschedule:
        left_out[METASCHEDULE] = "no time to tune was given (--metaschedule SECONDS)."
    wanted = {REFERENCE, OURS, *args.peers} - left_out.keys()
    return [name for name in PEERS if name in wanted], {
        PEERS[name].title: why for name, why in left_out.items()
    }


def peer_names(text: str) -> list[str]:
    """Return the peers of a list with commas."""
    names = text.split(",")
    for name in names:
        if name not in PEERS:
            raise argparse.ArgumentTypeError(f"choose from {', '.join(PEERS)}, not {name!r}")
    return names


def main(argv: Sequence[str] | None = None) -> int:
    """Measure, write the results and print the table; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="models; all when none is given")
    parser.add_argument(
        "--models", type=Path, action="append", required=True, metavar="DIR", help="may be repeated"
    )
    parser.add_argument("--peers", type=peer_names, default=list(PEERS), metavar="NAME,...")
    parser.add_argument("--db", type=Path, help="the store of the side tuned; without, left out")
    parser.add_argument(
        "--metaschedule",
        type=float,
        default=0.0,
        metavar="SECONDS",
        help="how long MetaSchedule tunes each model; without, left out",
    )
    parser.add_argument(
        "--metaschedule-on", metavar="NAME", help="the only model that it tunes; default: all"
    )
    parser.add_argument("--environments", type=Path, default=ENVIRONMENTS, metavar="DIR")
    campaign.add_options(parser, rounds=9)
    args = parser.parse_args(argv)
    entries = find(args.models, args.names)
    names, not_measured = chosen(args)
    ready, missing = with_environments(names, args.environments, say=campaign.say)
    with ExitStack() as stack:
        scratch = args.scratch or Path(stack.enter_context(TemporaryDirectory()))
        setting = Setting(
            args.threads,
            0 if args.prepare else args.rounds,
            args.patience,
            scratch.resolve(),
            store=args.db,
            metaschedule_s=args.metaschedule,
        )

        def measure_one(entry: Entry) -> list[Mapping[str, Any]]:
            lacking = dict(missing)
            if args.metaschedule_on not in (None, entry.name) and METASCHEDULE in names:
                lacking[METASCHEDULE] = "no time to tune this network was given"
            able = [peer for peer in ready if peer.name not in lacking]
            found = measure(entry, able, setting, progress=campaign.say)
            others = [Result(entry.name, name, cause=cause) for name, cause in lacking.items()]
            return [result.to_json() for result in (*found, *others)]

        if args.prepare:
            campaign.prepare(entries, measure_one)
            return 0
        report = campaign.run(
            NAME, entries, measure_one, args=args, setting=setting, sides=sides_json(names)
        )
    report["not_measured"] = not_measured
    campaign.write(report, peers_table.markdown(report), name=NAME, results=args.results)
    return 0


if __name__ == "__main__":
    sys.exit(main())

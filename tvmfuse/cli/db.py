"""``tvmfuse db``: look into the tuning store."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tvmfuse.cli import console, db_changes
from tvmfuse.cli.options import AllowFamily, AsJson, Database, TargetName
from tvmfuse.errors import InputError

if TYPE_CHECKING:
    from tvmfuse.store import Filter, Found, Record, Store
    from tvmfuse.store.lookup import Source
    from tvmfuse.store.packs import Pack

_COUNTED = {
    "workloads": "workload",
    "sessions": "session",
    "fusion_measurements": "measured fusion",
    "cost_models": "cost model",
}
_KEY_DIGITS = 12  # of a workload's key, enough to name it

WorkloadKey = Annotated[
    str, typer.Argument(metavar="WORKLOAD", help="Beginning of a key that 'db ls' shows.")
]
Kind = Annotated[str | None, typer.Option(metavar="KIND", help="Only llvm, cuda or metal.")]
DeviceFamily = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Only devices of a family: x86-64-v3, sm_80, m1."),
]
Family = Annotated[str | None, typer.Option(metavar="NAME", help="Only this kernel family.")]
Limit = Annotated[int, typer.Option(min=1, help="How many at most.")]


def group() -> typer.Typer:
    """Return the commands together."""
    app = typer.Typer(no_args_is_help=True, help="Look into the tuning store, share it, keep it.")
    reading: Mapping[str, Callable[..., None]] = {
        "ls": list_workloads,
        "show": show_workload,
        "stats": show_stats,
        "best": show_best,
        "check": check_store,
    }
    for name, command in {**reading, **db_changes.COMMANDS}.items():
        app.command(name)(command)
    return app


def list_workloads(
    *,
    db: Database = None,
    kind: Kind = None,
    device_family: DeviceFamily = None,
    family: Family = None,
    as_json: AsJson = False,
) -> None:
    """List the workloads, with their trials and their best time on each device."""
    from tvmfuse.store import Filter
    from tvmfuse.store.records import TIMED

    wanted = Filter(kind=kind, device_family=device_family, family=family)
    columns = ("workload", "summary", "device", "family", "status")
    with db_changes.opened(db) as store:
        counted = store.count(*columns, wanted=wanted)
    found: dict[tuple[str, ...], dict[str, Any]] = {}
    for *key, status, number, best_us in counted:
        row = found.setdefault(tuple(key), {"timed": 0, "failed": 0, "best_us": None})
        row["timed" if status in TIMED else "failed"] += number
        row["best_us"] = best_us if status == "ok" else row["best_us"]
    rows = [{**dict(zip(columns, key, strict=False)), **row} for key, row in found.items()]
    if as_json:
        console.print_json("db ls", {"database": store.name, "workloads": rows})
        return
    cells = [
        (
            row["workload"][:_KEY_DIGITS],
            row["summary"],
            row["device"],
            row["family"],
            row["timed"],
            row["failed"],
            _time(row["best_us"]),
        )
        for row in rows
    ]
    headings = ("key", "workload", "device", "family", ">timed", ">failed", ">best")
    console.print_table(store.name, headings, cells)
    if not rows:
        console.print_text(f"{store.name} holds no such record.")


def show_workload(
    workload: WorkloadKey, *, db: Database = None, limit: Limit = 20, as_json: AsJson = False
) -> None:
    """Show the records of a workload, best first, failures last."""
    from tvmfuse.store import Filter

    with db_changes.opened(db) as store:
        found = _ranked(store, Filter(workload=workload), limit)
        if not found:
            raise InputError(
                f"db: no record is of a workload {workload!r}; 'tvmfuse db ls' shows their keys"
            )
    if as_json:
        console.print_json("db show", {"records": [record.to_json() for record in found]})
        return
    cells = [
        (
            record.workload[:_KEY_DIGITS],
            record.device.name,
            record.family,
            _decisions(record),
            _time(record.median_us),
            _time(record.spread_us),
            f"{record.status}: {record.reason}" if record.reason else record.status,
            record.created_at[:19],
        )
        for record in found
    ]
    headings = ("key", "device", "family", "decisions", ">median", ">spread", "status", "when")
    console.print_table(store.name, headings, cells)


def show_stats(*, db: Database = None, as_json: AsJson = False) -> None:
    """Count records by device and outcome, and say which store is in use."""
    from tvmfuse.store.location import locate
    from tvmfuse.store.packs import load_packs

    place = locate(db)
    with db_changes.opened(db) as store:
        counted = store.count("kind", "device_family", "device", "status")
        sizes = store.sizes()
    packs = {
        str(pack.path): sum(map(len, pack.by_workload.values()))
        for pack in load_packs(place.all_packs)
    }
    names = ("kind", "device_family", "device", "status", "records")
    rows = [dict(zip(names, row, strict=False)) for row in counted]
    if as_json:
        about = {"database": store.name, "chosen_by": place.origin, "packs": packs}
        numbers = {name: sizes[name] for name in _COUNTED}
        console.print_json("db stats", {**about, **numbers, "records": rows})
        return
    numbered = (console.count(sizes[name], noun) for name, noun in _COUNTED.items())
    console.print_text(f"{store.name}, chosen by {place.origin}: {', '.join(numbered)}")
    console.print_table("Records", (*names[:-1], ">records"), [tuple(row.values()) for row in rows])
    console.print_table("Packs", ("pack", ">records"), packs.items())


def show_best(
    workload: Annotated[str, typer.Argument(metavar="[WORKLOAD]", help="Only these keys.")] = "",
    *,
    db: Database = None,
    target: TargetName = "cpu",
    allow_family: AllowFamily = False,
    as_json: AsJson = False,
) -> None:
    """Show the record that a compile for this device would use, for each workload."""
    from tvmfuse import targets
    from tvmfuse.store import Query, find
    from tvmfuse.store.devices import device_of, target_key
    from tvmfuse.store.location import locate
    from tvmfuse.store.packs import load_packs

    device = targets.resolve(target)
    with db_changes.opened_if_there(db) as store:
        holders: list[Store | Pack] = [] if store is None else [store]
        holders += load_packs(locate(db).all_packs, device_of(device))
        sources: list[Source] = [*holders]
        known = dict.fromkeys(each.key for holder in holders for each in holder.workloads())
        keys = [key for key in known if key.startswith(workload)]
        queries = [Query(key, device_of(device), target_key(device)) for key in keys]
        found = [find(sources, query, allow_family=allow_family) for query in queries]
    best = [each[0] for each in found if each]
    if as_json:
        console.print_json("db best", {"target": device.spec, "records": [*map(_to_json, best)]})
        return
    cells = [
        (
            each.record.workload[:_KEY_DIGITS],
            each.record.family,
            _decisions(each.record),
            _time(each.record.median_us),
            each.note,
        )
        for each in best
    ]
    console.print_table(f"Best for {target}", ("key", "family", "decisions", ">median", ""), cells)
    console.print_text(f"{len(best)} of {console.count(len(keys), 'workload')} have a record here.")


def check_store(*, db: Database = None, as_json: AsJson = False) -> None:
    """Read all of the store and compare it with its checksums; exit with 1 where it is damaged."""
    from tvmfuse.store.maintenance import check

    with db_changes.opened(db) as store:
        health = check(store)
    if as_json:
        console.print_json("db check", {"healthy": health.is_healthy, **asdict(health)})
    else:
        console.print_text(
            f"{store.name}: {console.count(health.n_records, 'record')} of "
            f"{console.count(health.n_workloads, 'workload')}, "
            f"{console.count(health.n_measurements, 'measured fusion')} and "
            f"{console.count(health.n_models, 'cost model')} are whole, "
            f"{console.count(health.n_damaged, 'record')} damaged"
        )
        for fault in health.faults:
            console.print_text(f"  {fault}")
    if not health.is_healthy:
        raise typer.Exit(1)


def _ranked(store: Store, wanted: Filter, limit: int) -> list[Record]:
    found = [record for record in store.records(wanted) if record is not None]
    found.sort(key=lambda record: record.median_us or float("inf"))
    return found[:limit]


def _to_json(found: Found) -> dict[str, Any]:
    about = {"note": found.note, "needs_verification": found.needs_verification}
    return {**found.record.to_json(), **about}


def _decisions(record: Record) -> str:
    if record.decisions is None:
        return "a trace of TVM" if record.trace is not None else ""
    return ", ".join(f"{name} {value}" for name, value in record.decisions.items())


def _time(time_us: float | None) -> str:
    return "" if time_us is None else console.duration(time_us)

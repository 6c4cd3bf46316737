"""The commands of ``tvmfuse db`` that write: to the store, or out of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tvmfuse import files
from tvmfuse.cli import console
from tvmfuse.cli.options import Database, TargetName
from tvmfuse.errors import InputError

if TYPE_CHECKING:
    from tvmfuse.store import Store
    from tvmfuse.store.exchange import Taken

_FORMATS = ("jsonl", "tvm-json")

Format = Annotated[
    str,
    typer.Option(
        "--format",
        metavar="|".join(_FORMATS),
        help="jsonl holds everything; tvm-json what TVM replays, of one target.",
    ),
]


@contextmanager
def opened(db: str | None, *, create: bool = False) -> Iterator[Store]:
    """Open the store in use."""
    from tvmfuse.store import open_store
    from tvmfuse.store.location import locate

    with open_store(locate(db).database, create=create) as store:
        yield store


@contextmanager
def opened_if_there(db: str | None) -> Iterator[Store | None]:
    """Open the store in use; None where none was named and the usual one was not made yet."""
    from tvmfuse.store.location import locate

    if db is None and not Path(locate(None).database).exists():
        yield None
        return
    with opened(db) as store:
        yield store


def merge_store(
    other: Annotated[str, typer.Argument(metavar="FILE|URL", help="A store to read from.")],
    *,
    db: Database = None,
) -> None:
    """Add all that another store holds to this one; merging twice adds nothing."""
    from tvmfuse.store import open_store
    from tvmfuse.store.exchange import merge

    with open_store(other, create=False) as source, opened(db, create=True) as store:
        taken = merge(source, store, _is_same_module)
    _report(taken, other)


def import_records(
    path: Annotated[Path, typer.Argument(help="A .jsonl file, or a folder that TVM wrote.")],
    *,
    db: Database = None,
    target: TargetName = "cpu",
) -> None:
    """Add what an export holds; a folder of TVM is taken as measured on --target."""
    from tvmfuse.store.exchange import take
    from tvmfuse.store.jsonl import read

    with opened(db, create=True) as store:
        if not path.is_dir():
            taken = take(store, read(path), _is_same_module)
        else:
            from tvmfuse import targets
            from tvmfuse.store.devices import device_of, target_key
            from tvmfuse.store.tvm_json import import_folder

            device = targets.resolve(target)
            place = {"device": device_of(device), "target": target_key(device)}
            with console.stages() as begin:
                begin("replay the traces")
                taken = import_folder(store, path, **place)  # type: ignore[arg-type]
    _report(taken, str(path))


def export_records(
    path: Annotated[Path, typer.Argument(help="The file, or for tvm-json the folder, to write.")],
    *,
    db: Database = None,
    as_format: Format = "jsonl",
    target: TargetName = "cpu",
) -> None:
    """Write all that the store holds as text."""
    if as_format not in _FORMATS:
        raise InputError(f"db: --format is one of {', '.join(_FORMATS)}, but got {as_format!r}")
    if path.exists() and not path.is_dir():
        raise InputError(f"db: {path} is there already; choose another name")
    from tvmfuse.store.exchange import items
    from tvmfuse.store.jsonl import Written, write

    with opened(db) as store:
        if as_format == "jsonl":
            with (
                files.whole_file(path) as part,
                part.open("w", encoding="utf-8", newline="\n") as file,
            ):
                written = write(items(store), file)
        else:
            from tvmfuse import targets
            from tvmfuse.store.devices import device_of, target_key
            from tvmfuse.store.tvm_json import export_folder

            device = targets.resolve(target)
            place = {"device": device_of(device), "target": target_key(device)}
            written = Written(export_folder(store, path, **place))  # type: ignore[arg-type]
    counted = (
        console.count(written.n_records, "record"),
        *_lessons(written.n_measurements, written.n_models),
    )
    console.print_text(f"{path} holds {', '.join(counted)} of {store.name}.")
    if as_format == "tvm-json" and not written.n_records:
        console.print_text(
            "TVM's files hold what TVM replays: the best records of its own spaces, which 'tvmfuse "
            "tune --strategy metaschedule' searches; --format jsonl holds everything."
        )
    for fault in written.faults:
        console.print_text(f"  {fault}")


def make_pack(
    device_family: Annotated[
        str, typer.Argument(metavar="FAMILY", help="x86-64-v3, sm_80, m1: 'db stats' lists them.")
    ],
    *,
    db: Database = None,
    kind: Annotated[str, typer.Option(metavar="KIND", help="llvm, cuda or metal.")] = "llvm",
    keep: Annotated[int, typer.Option(min=1, help="Records of each workload.")] = 3,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", metavar="FILE", help="Where to write it.")
    ] = None,
) -> None:
    """Write the best records of a device family as a text file to share in a repository."""
    from tvmfuse.store.location import locate
    from tvmfuse.store.packs import SUFFIX, write_pack

    path = output or (locate(db).packs or Path()) / f"{device_family}{SUFFIX}"
    with opened(db) as store:
        options = {"kind": kind, "device_family": device_family}
        n_records = write_pack(store, path, per_workload=keep, **options)
    console.print_text(f"{path} holds {console.count(n_records, 'record')} of {store.name}.")


def prune_store(
    *,
    db: Database = None,
    keep: Annotated[int, typer.Option(min=1, help="Best records of each workload that stay.")],
    failures: Annotated[bool, typer.Option("--failures", help="Delete failures too.")] = False,
) -> None:
    """Delete all but the best records of each workload, device, target and family."""
    from tvmfuse.store.maintenance import prune

    with opened(db) as store:
        n_deleted = prune(store, keep=keep, drop_failures=failures)
    console.print_text(f"{store.name}: {console.count(n_deleted, 'record')} deleted.")


def back_up_store(
    to: Annotated[Path, typer.Argument(metavar="FILE", help="The copy; must not be there.")],
    *,
    db: Database = None,
) -> None:
    """Copy the store while others may be writing to it."""
    from tvmfuse.store.opening import back_up

    with opened(db) as store:
        if store.backend.path is None:
            raise InputError(
                f"db: {store.name} is a server; copy it by pg_dump, or by 'tvmfuse db export'"
            )
        back_up(store.backend.path, to)
    console.print_text(f"{to} is a copy of {store.name}.")


def upgrade_store(*, db: Database = None) -> None:
    """Bring an older store up to date; a SQLite file is copied first."""
    from tvmfuse.store.location import locate
    from tvmfuse.store.opening import upgrade
    from tvmfuse.store.schema import REVISIONS

    done = upgrade(locate(db).database)
    if done.before == REVISIONS[-1]:
        console.print_text(f"{done.name} has schema {done.before}, the newest.")
        return
    copy = "" if done.copy is None else f"; {done.copy} is a copy of what it was"
    console.print_text(f"{done.name}: schema {done.before} became {REVISIONS[-1]}{copy}.")


COMMANDS: Mapping[str, Callable[..., None]] = {
    "merge": merge_store,
    "import": import_records,
    "export": export_records,
    "pack": make_pack,
    "prune": prune_store,
    "backup": back_up_store,
    "upgrade": upgrade_store,
}


def _is_same_module(first: str, second: str) -> bool:
    from tvmfuse.store.keys import is_same_module  # loads TVM, which is seldom needed

    return is_same_module(first, second)


def _report(taken: Taken, origin: str) -> None:
    counted = (
        console.count(taken.n_new, "new record"),
        f"{taken.n_known} known",
        *_lessons(taken.n_measurements, taken.n_models, new="new "),
        f"{len(taken.faults)} left out or mended",
    )
    console.print_text(f"{origin}: {', '.join(counted)}")
    for fault in taken.faults:
        console.print_text(f"  {fault}")


def _lessons(n_measurements: int, n_models: int, new: str = "") -> tuple[str, str]:
    return (
        console.count(n_measurements, f"{new}measured fusion"),
        console.count(n_models, f"{new}cost model"),
    )

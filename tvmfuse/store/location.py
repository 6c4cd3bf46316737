"""Which database is in use."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import platformdirs

import tvmfuse
from tvmfuse.store.records import without_password

VARIABLE = "TVMFUSE_DB"
FOLDER = "tuning_logs"
FILE = "tvmfuse.db"


@dataclass(frozen=True)
class Location:
    """A database, and why it is the one.

    Parameters
    ----------
    database : str
        A file, or a URL.
    origin : str
        What named it.
    packs : Path, optional
        The project's folder of packs beneath it.
    shipped : Path, optional
        The packs that came with tvmfuse, beneath these.
    """

    database: str
    origin: str
    packs: Path | None = None
    shipped: Path | None = None

    @property
    def all_packs(self) -> tuple[Path, ...]:
        """The folders of packs, in the order in which they are asked."""
        folders = (folder for folder in (self.packs, self.shipped) if folder is not None)
        return tuple({folder.resolve(): folder for folder in folders}.values())

    @property
    def shown(self) -> str:
        """The database without a password."""
        return without_password(self.database)


def locate(given: str | None = None, *, start: Path | None = None) -> Location:
    """Return the database in use.

    It is the one given, else the nearest ``tuning_logs/`` upward from the working folder,
    else the one in the user's data folder.

    Parameters
    ----------
    given : str, optional
        From ``--db`` or ``TVMFUSE_DB``: a SQLite file or a ``postgresql://`` URL.
    start : Path, optional
        Where to look upward from; the working folder where not given.
    """
    start = (start or Path.cwd()).absolute()
    folders = (folder / FOLDER for folder in (start, *start.parents))
    nearest = next((folder for folder in folders if folder.is_dir()), None)
    packs = None if nearest is None else nearest / "packs"
    beneath = {"packs": packs, "shipped": shipped_packs()}
    if given:
        return Location(given, f"--db or {VARIABLE}", **beneath)
    if nearest is not None:
        return Location(str(nearest / FILE), f"the nearest {FOLDER}/", **beneath)
    folder = platformdirs.user_data_path("tvmfuse") / FOLDER
    beneath["packs"] = folder / "packs"
    return Location(str(folder / FILE), "the user's data folder", **beneath)


def shipped_packs() -> Path | None:
    """Return the folder of the packs that came with tvmfuse: installed, or of a checkout."""
    package = Path(tvmfuse.__file__).parent
    folders = (package / "packs", package.parent / FOLDER / "packs")
    return next((folder for folder in folders if folder.is_dir()), None)

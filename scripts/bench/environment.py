"""Make the environment that a peer runs in, from PyPI."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

Say = Callable[[str], None]


class PipError(Exception):
    """An environment could not be made; says why in one line."""


def make(name: str, requirements: Path, *, into: Path, say: Say = lambda _: None) -> Path:
    """Return the interpreter of an environment that holds ``requirements``.

    It is made anew when the requirements changed, or when making it was interrupted.

    Parameters
    ----------
    name : str
        The name of its folder.
    requirements : Path
        What pip shall install.
    into : Path
        The folder of all environments.
    say : callable
        Is told where it has to be made.

    Raises
    ------
    PipError
        pip failed.
    """
    folder = into / name
    python, stamp = folder / "bin" / "python", folder / ".installed"
    wanted = text(requirements)
    if not stamp.exists() or stamp.read_text(encoding="utf-8") != wanted:
        say(f"environment of {name}")
        run(sys.executable, "-m", "venv", "--clear", folder)
        pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
        run(*pip, "--requirement", requirements)
        stamp.write_text(wanted, encoding="utf-8")
    return python


def text(requirements: Path) -> str:
    """Return the lines of a requirements file, those that it includes in their place."""
    lines = []
    for line in requirements.read_text(encoding="utf-8").splitlines():
        option, _, other = line.partition(" ")
        lines.append(text(requirements.parent / other) if option == "-r" else line)
    return "\n".join(lines)


def run(*command: object) -> None:
    """Run a command, or raise with its last error."""
    done = subprocess.run([*map(str, command)], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        lines = done.stderr.strip().splitlines() or [f"exit code {done.returncode}, nothing said"]
        errors = [line for line in lines if line.startswith("ERROR")] or lines
        raise PipError(errors[-1])

"""Patterns of others: registered in Python, named in a file, or installed beside tvmfuse."""

from __future__ import annotations

import inspect
import runpy
from collections.abc import Set
from dataclasses import dataclass
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path
from typing import Any, TypeVar

from tvmfuse._tvm import relax
from tvmfuse.errors import PatternError
from tvmfuse.patterns.base import Generator, Pattern
from tvmfuse.patterns.dpl import Wrapped

GROUP = "tvmfuse.patterns"
"""Entry points of this group name a pattern, or a class that makes one."""

Given = TypeVar("Given")


@dataclass(frozen=True)
class Plugin:
    """A pattern of somebody else.

    Parameters
    ----------
    pattern : Generator
        The pattern.
    source : str
        Where it comes from, for people.
    """

    pattern: Generator
    source: str


@dataclass(frozen=True)
class Failure:
    """A pattern that is installed but cannot be used.

    Parameters
    ----------
    name : str
        What the installed package calls it.
    reason : str
        Why.
    """

    name: str
    reason: str


@dataclass(frozen=True)
class Added:
    """All patterns of others, and those that failed to load."""

    plugins: tuple[Plugin, ...] = ()
    failed: tuple[Failure, ...] = ()


# The one thing here that changes: what was registered, by name, the latest first.
_registered: dict[str, Plugin] = {}


def keep(given: Given, *, taken: Set[str]) -> Given:
    """Keep a pattern for the registries of this process; see :func:`registry.register`."""
    pattern = as_pattern(given)
    if pattern.name in taken:
        raise PatternError(
            f"register: the name {pattern.name!r} belongs to a pattern of tvmfuse: choose another"
        )
    others = {name: plugin for name, plugin in _registered.items() if name != pattern.name}
    _registered.clear()
    _registered.update({pattern.name: Plugin(pattern, _home(given, pattern)), **others})
    return given


def unregister(name: str) -> None:
    """Forget a registered pattern.

    Raises
    ------
    PatternError
        None of that name is registered.
    """
    if name not in _registered:
        known = ", ".join(_registered) or "none"
        raise PatternError(f"unregister: no pattern {name!r} is registered; there are: {known}")
    del _registered[name]


def added(*, taken: Set[str]) -> Added:
    """Return what was registered, then what is installed.

    Parameters
    ----------
    taken : set of str
        Names that an installed pattern may not have.
    """
    plugins, failed = list(_registered.values()), []
    names = {*taken, *_registered}
    for entry in entry_points(group=GROUP):
        loaded = _loaded(entry)
        if isinstance(loaded, Failure):
            failed.append(loaded)
        elif loaded.pattern.name in names:
            reason = f"another pattern has the name {loaded.pattern.name!r} already"
            failed.append(Failure(entry.name, reason))
        else:
            names.add(loaded.pattern.name)
            plugins.append(loaded)
    return Added(tuple(plugins), tuple(failed))


def from_file(path: Path) -> tuple[Generator, ...]:
    """Run a Python file and return the patterns that it registers, without keeping them.

    Parameters
    ----------
    path : Path
        A file that calls ``tvmfuse.register``.

    Raises
    ------
    PatternError
        It cannot be read or run, or registers nothing.
    """
    if not path.is_file():
        raise PatternError(f"{path}: there is no such file: give one that calls tvmfuse.register")
    before = dict(_registered)
    _registered.clear()
    try:
        runpy.run_path(str(path))
        found = tuple(plugin.pattern for plugin in _registered.values())
    except (Exception, SystemExit) as error:  # a file of the user's may raise anything
        raise PatternError(f"{path}: must run as Python, but {_where(error, path)}") from error
    finally:
        _registered.clear()
        _registered.update(before)
    if not found:
        raise PatternError(f"{path}: registers no pattern: give one to tvmfuse.register")
    return found


def as_pattern(given: Any) -> Generator:
    """Return the pattern that ``given`` is, makes, or means in TVM.

    Raises
    ------
    PatternError
        It is none, or lacks what a pattern must have.
    """
    made = given
    if inspect.isclass(given) and issubclass(given, Generator):
        try:
            made = given()
        except TypeError as error:
            raise PatternError(f"{given.__qualname__}: cannot be made: {error}") from error
    if isinstance(given, relax.transform.FusionPattern):
        made = Wrapped.of(given)
    if not isinstance(made, Generator):
        raise PatternError(
            "register: needs a tvmfuse.Pattern, its class, or a FusionPattern of TVM, but got "
            f"{type(given).__name__}"
        )
    needed = ("name", "family") if isinstance(made, Pattern) else ("name",)
    for attribute in needed:
        value = getattr(made, attribute, None)
        if not isinstance(value, str) or not value:
            raise PatternError(
                f"{type(made).__qualname__}: {attribute} must be a text, but is {value!r}"
            )
    return made


def describe(error: BaseException) -> str:
    """Return the kind and the first line of an error."""
    lines = str(error).strip().splitlines() or [""]
    return f"{type(error).__name__}: {' '.join(lines[0].split())}".removesuffix(": ")


def _loaded(entry: EntryPoint) -> Plugin | Failure:
    try:
        pattern = as_pattern(entry.load())
    except Exception as error:  # noqa: BLE001 - code of others may raise anything
        return Failure(entry.name, f"it could not be loaded: {describe(error)}")
    distribution = entry.dist
    origin = f"{distribution.name} {distribution.version}" if distribution else entry.value
    return Plugin(pattern, origin)


def _where(error: BaseException, path: Path) -> str:
    """Say what went wrong in a file, and in which of its lines."""
    if isinstance(error, OSError):
        return describe(error)
    line = getattr(error, "lineno", None)  # of a SyntaxError
    frame = error.__traceback__
    while frame is not None:
        if frame.tb_frame.f_code.co_filename == str(path):
            line = frame.tb_lineno
        frame = frame.tb_next
    return f"line {line}: {describe(error)}" if line else describe(error)


def _home(given: Any, pattern: Generator) -> str:
    module = given.__module__ if inspect.isclass(given) else type(pattern).__module__
    return f"registered by {module}"

"""Ways to take the decisions of a kernel family: by default, from a record, at random.

A family asks ``choose(name, options, default=...)`` for each decision, so one and
the same schedule function is the zero-trial kernel and spans the search space.
What was decided is plain data, and can be replayed.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any, Protocol, TypeVar

from tvmfuse.errors import LoweringError

T = TypeVar("T")


@dataclass(frozen=True)
class Decision:
    """One decision that a schedule took.

    Parameters
    ----------
    name : str
        What is decided.
    options : tuple
        What could be chosen; plain numbers.
    chosen : object
        One of the options.
    """

    name: str
    options: tuple[Any, ...]
    chosen: Any


class Take(Protocol):
    """Takes one decision."""

    def __call__(self, name: str, options: Sequence[T], default: T, /) -> T:
        """Return one of ``options``."""
        ...


@dataclass
class Recorder:
    """Takes decisions by ``take`` and remembers them; give its method ``choose`` to a schedule."""

    take: Take
    decisions: list[Decision] = field(default_factory=list)

    def choose(self, name: str, options: Sequence[T], *, default: T) -> T:
        """Take one decision."""
        chosen = self.take(name, options, default)
        self.decisions.append(Decision(name, tuple(options), chosen))
        return chosen

    @property
    def taken(self) -> dict[str, Any]:
        """The decisions by name, as they are stored in a record."""
        return {decision.name: decision.chosen for decision in self.decisions}


def by_default() -> Recorder:
    """Return a recorder that takes every default."""
    return Recorder(lambda _name, _options, default: default)


def at_random(random: Random) -> Recorder:
    """Return a recorder that takes any option."""
    return Recorder(lambda _name, options, _default: random.choice(list(options)))


def from_record(taken: Mapping[str, Any]) -> Recorder:
    """Return a recorder that repeats the decisions of a record.

    Raises
    ------
    LoweringError
        While scheduling: a decision is missing, or is none of the options.
    """

    def take(name: str, options: Sequence[Any], _default: Any) -> Any:
        if name not in taken:
            raise LoweringError(f"the record lacks the decision {name!r}: it is of another version")
        if taken[name] not in options:
            raise LoweringError(
                f"decision {name!r} must be one of {list(options)}, but the record has "
                f"{taken[name]!r}: it is of another workload"
            )
        return taken[name]

    return Recorder(take)


def prefixed(choose: Callable[..., Any], prefix: str) -> Callable[..., Any]:
    """Return what takes the decisions of one part of a kernel, by names that begin so."""

    def choose_of_part(name: str, options: Sequence[Any], *, default: Any) -> Any:
        return choose(prefix + name, options, default=default)

    return choose_of_part

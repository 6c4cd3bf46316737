"""What became of every operator, as plain data."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from tvmfuse.plan import RunTime
from tvmfuse.report.near import Near

Place = tuple[str, int]  # a function and a position in it


@dataclass(frozen=True)
class Fused:
    """One group of the plan.

    Parameters
    ----------
    pattern, family : str
        What found it, and what runs it.
    ops : tuple of str
        Its operators, in order.
    nodes : tuple of str
        What a person calls them: names of the model's nodes where known.
    fused_us, unfused_us : float
        Time of the group, as one kernel and as separate ones: measured where it was, else
        predicted.
    doubt_us : float
        How far the time saved may be off, up or down, in four cases of five.
    predicted : RunTime, optional
        What was predicted, where the times were measured.
    """

    pattern: str
    family: str
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    fused_us: float
    unfused_us: float
    doubt_us: float = 0.0
    predicted: RunTime | None = None


@dataclass(frozen=True)
class Refused:
    """One match or candidate that the plan does not use.

    Parameters
    ----------
    pattern : str
        What found it.
    stage : str
        Who refused it: ``collect`` (not legal), ``plan`` (not worth it) or ``lower``.
    reason : str
        Why.
    ops, nodes : tuple of str
        Its operators, and what a person calls them.
    fused_us, unfused_us : float or None
        Predicted time of it, as one kernel and as separate ones; None where it was not asked.
    """

    pattern: str
    stage: str
    reason: str
    ops: tuple[str, ...]
    nodes: tuple[str, ...]
    fused_us: float | None = None
    unfused_us: float | None = None


@dataclass(frozen=True)
class Alone:
    """One operator that is in no group.

    Parameters
    ----------
    op, node : str
        The operator, and what a person calls it.
    reason : str
        Why no match that holds it is used; "" where no pattern met it.
    time_us : float or None
        Predicted time of its kernel; None where it is no kernel.
    near : str
        Where no pattern met it: the pattern that came nearest, and what it lacked.
    """

    op: str
    node: str
    reason: str
    time_us: float | None = None
    near: str = ""


_TIME = re.compile(r"(-?[\d.]+) µs")


def alike(ops: Sequence[Alone]) -> tuple[tuple[Alone, ...], ...]:
    """Put operators together that are alone for one reason, but for the times in it."""
    kinds: dict[tuple[str, str], list[Alone]] = {}
    for op in ops:
        kinds.setdefault((op.op, _TIME.sub("", op.reason)), []).append(op)
    return tuple(map(tuple, kinds.values()))


def reason(ops: Sequence[Alone]) -> str:
    """Return the reason of operators that are :func:`alike`, with the sums of its times."""
    times = zip(*(map(float, _TIME.findall(op.reason)) for op in ops), strict=True)
    sums = iter([sum(each) for each in times])
    return _TIME.sub(lambda _: f"{next(sums):.1f} µs", ops[0].reason)


@dataclass(frozen=True)
class Explanation:
    """What becomes of the operators of a model.

    Parameters
    ----------
    fused : tuple of Fused
        The groups of the plan.
    alone : tuple of Alone
        The operators outside of them.
    refused : tuple of Refused
        All matches that the plan does not use; most overlap with a group that it does.
    near : tuple of Near
        Places that a pattern nearly matches; by pattern, the nearest first.
    n_ops : int
        All operators of the model.
    planner : str
        Who chose.
    gap_us : float
        What the best plan may save more at most; 0 where this is proven to be the best.
    notes : tuple of str
        What else there is to say about how the plan was made.
    """

    fused: tuple[Fused, ...]
    alone: tuple[Alone, ...]
    refused: tuple[Refused, ...]
    near: tuple[Near, ...] = ()
    n_ops: int = 0
    planner: str = "optimal"
    gap_us: float = 0.0
    notes: tuple[str, ...] = ()

    @property
    def n_fused_ops(self) -> int:
        """Operators that are part of a group; one that several groups compute counts once."""
        return self.n_ops - len(self.alone)

    @property
    def saved_us(self) -> float:
        """Predicted time saved by all groups together, in microseconds."""
        return sum(group.unfused_us - group.fused_us for group in self.fused)

    @property
    def fused_us(self) -> float:
        """Predicted time of a run by this plan, in microseconds."""
        alone_us = sum(op.time_us or 0.0 for op in self.alone)
        return alone_us + sum(group.fused_us for group in self.fused)

    @property
    def unfused_us(self) -> float:
        """Predicted time of a run of every operator by itself, in microseconds."""
        return self.fused_us + self.saved_us

    @property
    def nearest(self) -> tuple[Near, ...]:
        """The nearest miss of each pattern.

        Of a pattern that no group is of, a legal match that the planner did not choose. What
        shares only a few elementwise operators with a pattern is no miss.
        """
        first: dict[str, Near] = {}
        used = {group.pattern for group in self.fused}
        lost = (
            Near(match.pattern, match.ops, match.nodes, len(match.ops), match.reason)
            for match in self.refused
            if match.stage == "plan" and match.ops and match.pattern not in used
        )
        for miss in (*lost, *(miss for miss in self.near if miss.has_anchor)):
            first.setdefault(miss.pattern, miss)
        return tuple(first.values())

    def to_json(self) -> dict[str, Any]:
        """Return the explanation as JSON-compatible data."""
        return {
            "ops": self.n_ops,
            "fused_ops": self.n_fused_ops,
            "saved_us": self.saved_us,
            "fused_us": self.fused_us,
            "unfused_us": self.unfused_us,
            "planner": self.planner,
            "gap_us": self.gap_us,
            "notes": list(self.notes),
            "fused": [asdict(group) for group in self.fused],
            "alone": [asdict(op) for op in self.alone],
            "refused": [asdict(match) for match in self.refused],
            "near": [asdict(miss) for miss in self.near],
        }

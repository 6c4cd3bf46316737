"""The most valuable subset under packing constraints: an integer programme."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

# Where the linear relaxation is not whole already, larger components are rounded, and
# smaller ones searched for so many nodes. The bounds do not depend on the clock, so
# that plans are reproducible.
MAX_EXACT_ITEMS = 200
_MAX_NODES = 10_000
_WHOLE = 1e-6

# Equal sums are told apart by position. The nudge is a millionth of the most valuable
# item and a thousand times the solver's own tolerance.
_SCALE = 1e3
_NUDGE = 1e-3


@dataclass(frozen=True)
class Row:
    """Of ``items``, at most ``limit`` more may be chosen than of ``given``."""

    items: tuple[int, ...]
    limit: int
    given: tuple[int, ...] = ()

    @property
    def all(self) -> tuple[int, ...]:
        """Every item that it speaks of."""
        return (*self.items, *self.given)

    def holds(self, chosen: Set[int]) -> bool:
        """Whether a choice is allowed."""
        n_given = sum(item in chosen for item in self.given)
        return sum(item in chosen for item in self.items) - n_given <= self.limit


@dataclass(frozen=True)
class Component:
    """Items that rows connect, ascending, and these rows."""

    items: tuple[int, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Selection:
    """Chosen items, and how much better a choice could be where it is not proven best.

    Parameters
    ----------
    chosen : frozenset of int
        The items.
    unproven : frozenset of int
        Those among which there may be a better choice.
    gaps : Mapping of int to float
        How much more it can be worth at most, by the first item of a component.
    """

    chosen: frozenset[int]
    unproven: frozenset[int] = frozenset()
    gaps: Mapping[int, float] = field(default_factory=dict)


def components(n_items: int, rows: Sequence[Row]) -> list[Component]:
    """Split items into those that rows connect, in order of their first item.

    Parameters
    ----------
    n_items : int
        Items are counted from 0.
    rows : Sequence[Row]
        Constraints between them.
    """
    parent = list(range(n_items))

    def root(item: int) -> int:
        while parent[item] != item:
            parent[item] = parent[parent[item]]
            item = parent[item]
        return item

    for row in rows:
        first, *others = row.all
        for item in others:
            parent[root(item)] = root(first)
    items_of: defaultdict[int, list[int]] = defaultdict(list)
    rows_of: defaultdict[int, list[Row]] = defaultdict(list)
    for item in range(n_items):
        items_of[root(item)].append(item)
    for row in rows:
        rows_of[root(row.all[0])].append(row)
    return [Component(tuple(items), tuple(rows_of[at])) for at, items in items_of.items()]


def select(values: Sequence[float], parts: Sequence[Component]) -> Selection:
    """Choose the items of some components that are worth the most.

    Parameters
    ----------
    values : Sequence[float]
        Of all items. One that costs (below 0) may be needed for another.
    parts : Sequence[Component]
        The items to choose from, with every row that holds one of them.

    Returns
    -------
    Selection
        Exact to a millionth of a component's largest value, with ties to the earlier
        item. Or unproven, for a component that is too large or too hard: then the
        items that the linear relaxation holds most of are taken while they fit, and
        the relaxation bounds what a better choice is worth.
    """
    chosen = {i for part in parts if not part.rows for i in part.items if values[i] > 0}
    unproven: set[int] = set()
    gaps: dict[int, float] = {}
    tied = [part for part in parts if part.rows and any(values[i] > 0 for i in part.items)]
    if not tied:
        return Selection(frozenset(chosen))
    # One linear programme for all is far quicker than one each, and mostly whole.
    relaxed = _solve(values, tied, is_whole=False) or {}
    for part in tied:
        shares = {item: relaxed.get(item, 0.5) for item in part.items}
        bound = _total(values, shares if relaxed else {i: values[i] > 0 for i in part.items})
        if not _are_whole(shares) and len(part.items) <= MAX_EXACT_ITEMS:
            shares = _solve(values, [part], is_whole=True) or shares
        if _are_whole(shares):
            chosen.update(item for item, share in shares.items() if share > 0.5)
            continue
        rounded = _rounded(shares, values, part)
        chosen |= rounded
        unproven.update(part.items)
        gaps[part.items[0]] = max(0.0, bound - sum(values[item] for item in rounded))
    return Selection(frozenset(chosen), frozenset(unproven), gaps)


def _solve(
    values: Sequence[float], parts: Sequence[Component], *, is_whole: bool
) -> dict[int, float] | None:
    """Return how much of each item is best to take; None if not solved in bounds."""
    items = [item for part in parts for item in part.items]
    rows = [row for part in parts for row in part.rows]
    column = {item: i for i, item in enumerate(items)}
    entries = [(i, column[item], 1.0) for i, row in enumerate(rows) for item in row.items]
    entries += [(i, column[item], -1.0) for i, row in enumerate(rows) for item in row.given]
    at, columns, factors = zip(*entries, strict=True)
    matrix = csr_array((factors, (at, columns)), shape=(len(rows), len(items)))
    result = milp(
        -np.concatenate([_worth(values, part) for part in parts]),
        constraints=LinearConstraint(matrix, ub=[row.limit for row in rows]),
        integrality=np.full(len(items), is_whole),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0, "node_limit": _MAX_NODES},
    )
    return dict(zip(items, result.x.tolist(), strict=True)) if result.success else None


def _worth(values: Sequence[float], part: Component) -> NDArray[np.float64]:
    """Return the objective of a component: its values on one scale, ties broken."""
    worth = np.array([values[item] for item in part.items])
    nudge = np.linspace(1.0, 0.0, len(worth)) / len(worth)
    return worth / worth.max() * _SCALE + nudge * _NUDGE


def _total(values: Sequence[float], shares: Mapping[int, float] | Mapping[int, bool]) -> float:
    return sum(values[item] * share for item, share in shares.items())


def _are_whole(shares: Mapping[int, float]) -> bool:
    return all(abs(share - round(share)) < _WHOLE for share in shares.values())


def _rounded(
    shares: Mapping[int, float], values: Sequence[float], part: Component
) -> frozenset[int]:
    """Take items that are worth something by share, then value, while they fit."""
    left = [row.limit for row in part.rows]
    uses: defaultdict[int, list[tuple[int, int]]] = defaultdict(list)
    for i, row in enumerate(part.rows):
        for item in row.items:
            uses[item].append((i, 1))
        for item in row.given:
            uses[item].append((i, -1))
    chosen = set()
    order = sorted(part.items, key=lambda i: (-shares[i], -values[i], i))
    for item in order:
        if values[item] > 0 and all(left[i] >= use for i, use in uses[item]):
            chosen.add(item)
            for i, use in uses[item]:
                left[i] -= use
    return frozenset(chosen)

"""The most valuable subset under packing constraints: an integer programme."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_array

# A component with more items is chosen greedily, and a search is cut off after so
# many nodes: a bound that does not depend on the clock, so plans are reproducible.
MAX_EXACT_ITEMS = 20_000
_MAX_NODES = 10_000

# Equal sums are told apart by position. The nudge is a millionth of the most valuable
# item and a thousand times the solver's own tolerance.
_SCALE = 1e3
_NUDGE = 1e-3


@dataclass(frozen=True)
class Row:
    """At most ``limit`` of ``items`` may be chosen."""

    items: tuple[int, ...]
    limit: int


@dataclass(frozen=True)
class Component:
    """Items that rows connect, ascending, and these rows."""

    items: tuple[int, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Selection:
    """Chosen items, and those among which the choice is not proven to be best."""

    chosen: frozenset[int]
    unproven: frozenset[int] = frozenset()


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
        for item in row.items[1:]:
            parent[root(item)] = root(row.items[0])
    items_of: defaultdict[int, list[int]] = defaultdict(list)
    rows_of: defaultdict[int, list[Row]] = defaultdict(list)
    for item in range(n_items):
        items_of[root(item)].append(item)
    for row in rows:
        rows_of[root(row.items[0])].append(row)
    return [Component(tuple(items), tuple(rows_of[at])) for at, items in items_of.items()]


def select(values: Sequence[float], component: Component) -> Selection:
    """Choose the items of a component that are worth the most.

    Parameters
    ----------
    values : Sequence[float]
        Of all items; each above 0.
    component : Component
        The items to choose from, and every row that holds one of them.

    Returns
    -------
    Selection
        Exact to a millionth of the largest value, with ties to the earlier item;
        or greedy and unproven, where the component is too large or too hard.
    """
    if not component.rows:
        return Selection(frozenset(component.items))
    exact = _exact(values, component) if len(component.items) <= MAX_EXACT_ITEMS else None
    if exact is not None:
        return Selection(exact)
    return Selection(_greedy(values, component), unproven=frozenset(component.items))


def _exact(values: Sequence[float], component: Component) -> frozenset[int] | None:
    """Solve the integer programme; None where it is not solved within its bound."""
    column = {item: i for i, item in enumerate(component.items)}
    worth = np.array([values[item] for item in component.items])
    nudge = np.linspace(1.0, 0.0, len(worth)) / len(worth)
    entries = [(i, column[item]) for i, row in enumerate(component.rows) for item in row.items]
    matrix = csr_array(
        (np.ones(len(entries)), tuple(np.array(entries).T)),
        shape=(len(component.rows), len(worth)),
    )
    result = milp(
        -(worth / worth.max() * _SCALE + nudge * _NUDGE),
        constraints=LinearConstraint(matrix, ub=[row.limit for row in component.rows]),
        integrality=np.ones(len(worth)),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0, "node_limit": _MAX_NODES},
    )
    if result.status != 0:
        return None
    return frozenset(item for item, x in zip(component.items, result.x, strict=True) if x > 0.5)


def _greedy(values: Sequence[float], component: Component) -> frozenset[int]:
    """Take the most valuable item that still fits, again and again."""
    left = [row.limit for row in component.rows]
    rows_of: defaultdict[int, list[int]] = defaultdict(list)
    for i, row in enumerate(component.rows):
        for item in row.items:
            rows_of[item].append(i)
    chosen = set()
    for item in sorted(component.items, key=lambda item: (-values[item], item)):
        if all(left[i] > 0 for i in rows_of[item]):
            chosen.add(item)
            for i in rows_of[item]:
                left[i] -= 1
    return frozenset(chosen)

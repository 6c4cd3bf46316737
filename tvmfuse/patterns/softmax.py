"""Softmax with the scale and mask before it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from itertools import product
from typing import Any

import numpy as np

from tvmfuse.patterns import operators, references
from tvmfuse.patterns.base import Case, Operand, Pattern
from tvmfuse.patterns.trace import Found

_OPERANDS: Mapping[str, Operand] = {
    "x": Operand((2, 3, 4, 5)),
    "scale": Operand((), is_constant=True),
    "mask": Operand((2, 1, 1, 5)),
}


def _case(name: str, **options: bool) -> Case:
    chosen = {"is_scaled": False, "is_masked": False, "is_log": False, "is_guarded": False}
    return Case(name, _OPERANDS, {**chosen, **options})


def _masked_rows_too(op: Any, x: Any, mask: Any) -> Any:
    masked = op.add(x, mask)
    return op.nn.softmax(masked, axis=-1), masked


def _mask_widens(op: Any, x: Any, mask: Any) -> Any:
    return op.nn.softmax(op.add(x, mask), axis=-1)


class Softmax(Pattern):
    """Softmax or its logarithm over any axis, of scaled and masked scores.

    Guarded, rows of which nothing is left (every score masked to minus infinity, so
    that softmax gives NaN) become zero.
    """

    name = "softmax"
    family = "reduction"
    cases = (
        _case("scaled", is_scaled=True),
        _case("masked", is_masked=True),
        _case("scaled and masked", is_scaled=True, is_masked=True),
        _case("masked and guarded", is_masked=True, is_guarded=True),
        _case("logarithm of scaled", is_scaled=True, is_log=True),
    )
    near_misses = (
        Case("the masked scores are a result too", _OPERANDS, graph=_masked_rows_too),
        Case(
            "the mask stretches the scores",
            {"x": Operand((1, 3, 1, 5)), "mask": Operand((2, 1, 4, 5))},
            graph=_mask_widens,
        ),
    )

    def options(self) -> Iterator[Mapping[str, Any]]:
        """Yield every combination that has something besides the softmax."""
        names = ("is_scaled", "is_masked", "is_log", "is_guarded")
        for chosen in product((False, True), repeat=len(names)):
            options = dict(zip(names, chosen, strict=True))
            has_neighbour = options["is_scaled"] or options["is_masked"] or options["is_guarded"]
            if has_neighbour and not (options["is_log"] and options["is_guarded"]):
                yield options

    def graph(
        self,
        op: Any,
        x: Any,
        scale: Any,
        mask: Any,
        *,
        is_scaled: bool,
        is_masked: bool,
        is_log: bool,
        is_guarded: bool,
    ) -> Any:
        """Write scale, mask, softmax and guard."""
        y = op.multiply(x, scale) if is_scaled else x
        y = op.add(y, mask) if is_masked else y
        y = op.nn.log_softmax(y, axis=-1) if is_log else op.nn.softmax(y, axis=-1)
        return op.where(op.isnan(y), op.const(0.0), y) if is_guarded else y

    def reference(
        self,
        x: Any,
        scale: Any,
        mask: Any,
        *,
        is_scaled: bool,
        is_masked: bool,
        is_log: bool,
        is_guarded: bool,
    ) -> Any:
        """Compute it with NumPy."""
        y = x * scale if is_scaled else x
        y = y + mask if is_masked else y
        y = references.softmax(y)
        return np.log(y) if is_log else y

    def check(self, found: Found) -> str:
        """The scores must have the shape of the result: they are read row by row."""
        if operators.shape(found.operands["x"]) != operators.shape(found.root):
            return "its scores are stretched"
        return ""

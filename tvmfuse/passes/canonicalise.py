"""Bring a module into the form that patterns are written against."""

from __future__ import annotations

from typing import Any

from tvmfuse._tvm import relax, tvm


def canonicalise(mod: Any) -> Any:
    """Return an equal module in canonical form; doing it twice changes nothing more."""
    return tvm.transform.Sequential(
        [
            relax.transform.Normalize(),
            relax.transform.ConvertToDataflow(1),
            relax.transform.CanonicalizeBindings(),
            relax.transform.DeadCodeElimination(),
        ]
    )(mod)

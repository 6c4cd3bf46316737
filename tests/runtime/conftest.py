"""Sessions to call."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tvmfuse.runtime import Session

if TYPE_CHECKING:
    from tvmfuse.compiled import Compiled


@pytest.fixture(scope="session")
def session(compiled: Compiled) -> Session:
    """``y = x * [1, 2, 3] + 0.5``."""
    return Session.of(compiled)

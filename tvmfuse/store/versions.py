"""The software that records are measured with."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version

from tvmfuse import __version__


@dataclass(frozen=True)
class Versions:
    """The software that a record was measured with."""

    tvm: str
    ffi: str
    tvmfuse: str

    @classmethod
    def installed(cls) -> Versions:
        """Return the versions of this installation, without importing TVM."""
        return cls(_version("apache-tvm"), _version("apache-tvm-ffi"), __version__)


@functools.cache  # what is installed stays; reading it takes longer than a look-up
def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"

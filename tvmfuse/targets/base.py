"""A device as data: its TVM target, its limits, its peak numbers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from tvmfuse.plan import Peaks

if TYPE_CHECKING:
    import tvm


@dataclass(frozen=True)
class Target:
    """One device that tvmfuse compiles for.

    Parameters
    ----------
    spec : str
        The name a user gives: ``cpu``, ``cpu:x86-64-v3``, ``cuda:sm_80``, ``metal:m1``.
    kind : str
        TVM's kind: ``llvm``, ``cuda`` or ``metal``.
    attrs : Mapping
        The TVM target as JSON-compatible data, with its host.
    peaks : Peaks
        Peak numbers, by data sheet or measured.
    rules : str
        Name of the schedule rules: ``cpu`` (families of ours) or ``dlight``.
    vector_bytes : int
        Width of one vector register, in bytes; 0 on a GPU.
    vector_registers : int
        Number of vector registers of one core; 0 on a GPU.
    runs_here : bool
        Whether this very machine can execute the code.
    """

    spec: str
    kind: str
    attrs: Mapping[str, Any]
    peaks: Peaks
    rules: str
    vector_bytes: int = 0
    vector_registers: int = 0
    runs_here: bool = True

    @property
    def lanes(self) -> int:
        """Float32 elements in one vector register."""
        return self.vector_bytes // 4

    @property
    def cost_family(self) -> str:
        """The devices whose kernels take alike: an x86-64 level; "" where none is known."""
        if self.kind != "llvm" or not str(self.attrs.get("mtriple", "")).startswith("x86_64"):
            return ""
        return {64: "x86-64-v4", 32: "x86-64-v3"}.get(self.vector_bytes, "")

    def tvm(self) -> tvm.target.Target:
        """Return the TVM target."""
        from tvmfuse._tvm import tvm

        return tvm.target.Target(dict(self.attrs))

    def with_peaks(self, peaks: Peaks) -> Target:
        """Return the same target with other peak numbers."""
        return replace(self, peaks=peaks)

"""Find a target by the name a user gives."""

from __future__ import annotations

from tvmfuse.errors import TargetError
from tvmfuse.targets.base import Target


def resolve(spec: str) -> Target:
    """Return the target of a name such as ``cpu`` or ``cuda:sm_80``.

    Parameters
    ----------
    spec : str
        ``KIND`` or ``KIND:DEVICE``. ``auto`` is the CPU of this machine: no GPU is
        chosen unasked.

    Raises
    ------
    TargetError
        There is no such kind, or no such device of that kind.
    """
    kind, _, device = spec.partition(":")
    if spec in ("auto", "cpu") or (kind == "cpu" and device):
        from tvmfuse.targets import cpu

        return cpu.target(device)
    if kind == "cuda" and device:
        from tvmfuse.targets import cuda

        return cuda.target(device)
    if kind == "metal" and device:
        from tvmfuse.targets import metal

        return metal.target(device)
    raise TargetError(
        "target: required is auto, cpu, cpu:NAME, cuda:ARCH or metal:CHIP "
        f"(for example cpu:x86-64-v3, cuda:sm_80, metal:m1), but got {spec!r}"
    )

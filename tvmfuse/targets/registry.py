"""Find a target by the name a user gives."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from tvmfuse.errors import TargetError
from tvmfuse.targets.base import Target

if TYPE_CHECKING:
    import tvm


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
    kind, _, device = spec.partition(":") if isinstance(spec, str) else ("", "", "")
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


def from_tvm(given: tvm.target.Target | None) -> Target:
    """Return the target that a TVM target means, for flows that begin in TVM.

    Parameters
    ----------
    given : tvm.target.Target or None
        TVM's target, whose every attribute is kept; None is the CPU of this machine.

    Raises
    ------
    TargetError
        It is of a kind that tvmfuse does not compile for, or says too little.
    """
    if given is None:
        return resolve("cpu")
    attrs = json.loads(str(given))
    if given.host is not None:
        attrs["host"] = json.loads(str(given.host))
    kind = attrs["kind"]
    if kind == "llvm":
        from tvmfuse.targets import cpu

        return cpu.describe(f"cpu:{attrs.get('mcpu', 'generic')}", attrs)
    if kind == "cuda":
        return replace(resolve(f"cuda:{attrs['arch']}"), attrs=attrs)
    if kind == "metal":
        chip = attrs.get("host", {}).get("mcpu", "").removeprefix("apple-")
        return replace(resolve(f"metal:{chip or 'm1'}"), attrs=attrs)
    raise TargetError(
        f"target: required is a TVM target of kind llvm, cuda or metal, but got {kind!r}; "
        "compile for one of these, or without relax_pipeline='tvmfuse'"
    )

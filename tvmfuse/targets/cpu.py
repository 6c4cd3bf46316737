"""CPUs: what LLVM is told, and what the schedules may count on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from tvmfuse.errors import TargetError
from tvmfuse.host import Host, detect
from tvmfuse.plan import Peaks
from tvmfuse.targets.base import Target

_FOREIGN = Host(arch="", system="", cores=4)  # assumed of a CPU that is not this machine's

# Portable names that LLVM has no CPU for. "generic" would do for Arm but lacks a
# scheduling model, and LLVM then spills the accumulators of a 6 x 16 tile.
_ALIASES = {"aarch64": "cortex-a72"}

# Features whose instructions LLVM may choose by itself. Others only tune ("fast-..."), or
# need intrinsics (AMX).
_INSTRUCTIONS = re.compile(
    # x86
    r"avx.*|s?sse.*|fma4?|f16c|bmi2?|tbm|xop|lzcnt|popcnt|movbe|gfni|vaes|vpclmulqdq|pclmul"
    r"|aes|sha|adx|cx16|crc32|sahf"
    # Arm
    r"|neon|fp-armv8|fullfp16|fp16fml|dotprod|bf16|i8mm|sve.*|sme.*|rdm|lse2?|rcpc.*|complxnum"
    r"|jsconv|flagm|pauth|fptoint|crc|sha\d|sm4"
)
# Linux and LLVM spell most x86 extensions alike, but for "_" and "."; not these.
_LINUX_FLAGS = {
    "bmi": "bmi1",
    "crc32": "sse42",
    "lzcnt": "abm",
    "pclmul": "pclmulqdq",
    "sahf": "lahflm",
    "sha": "shani",
    "sse3": "pni",
}


def target(name: str = "", *, host: Host | None = None) -> Target:
    """Describe a CPU.

    Parameters
    ----------
    name : str
        A CPU that LLVM knows (``x86-64-v3``, ``znver3``, ``neoverse-n1``), ``aarch64``
        for any 64-bit Arm, or nothing for the CPU of this machine.
    host : Host, optional
        This machine; detected where not given.

    Returns
    -------
    Target
        Its peaks are an estimate by cores, vector width and clock.

    Raises
    ------
    TargetError
        LLVM knows no CPU of that name.
    """
    host = host or detect()
    if not name:
        return describe("cpu", _host_attrs(host), host=host)
    return describe(f"cpu:{name}", _named_attrs(name, host), host=host)


def describe(spec: str, attrs: Mapping[str, Any], *, host: Host | None = None) -> Target:
    """Complete a TVM target of kind ``llvm`` by what schedules and costs need.

    Parameters
    ----------
    spec : str
        Its name in messages and bundles.
    attrs : Mapping
        The TVM target; the number of cores is added where it is missing.
    host : Host, optional
        This machine; detected where not given.
    """
    host = host or detect()
    features = instructions(attrs)
    is_ours = host.is_named_by(attrs.get("mtriple", host.triple))
    runs_here = is_ours and features <= instructions(_host_attrs(host))
    machine = host if runs_here else _FOREIGN
    attrs = {"num-cores": machine.cores, **attrs}
    if "avx512f" in features:
        # LLVM avoids 512-bit vectors on CPUs that once slowed down for them.
        attrs["mattr"] = list(dict.fromkeys([*attrs.get("mattr", ()), "-prefer-256-bit"]))
    vector_bytes, vector_registers = _vectors(features)
    return Target(
        spec=spec,
        kind="llvm",
        attrs=attrs,
        peaks=default_peaks(machine, vector_bytes=vector_bytes),
        rules="cpu",
        vector_bytes=vector_bytes,
        vector_registers=vector_registers,
        runs_here=runs_here,
    )


def instructions(attrs: Mapping[str, Any]) -> frozenset[str]:
    """Return the instruction-set extensions that code for a CPU may use.

    Parameters
    ----------
    attrs : Mapping
        :attr:`Target.attrs` of a CPU target.

    Returns
    -------
    frozenset of str
        LLVM's names: ``avx2``, ``avx512f``, ``fma``, ``neon``, ``dotprod`` ...
    """
    from tvmfuse._tvm import tvm

    found = tvm.target.codegen.llvm_get_cpu_features(tvm.target.Target(dict(attrs)))
    return frozenset(feature for feature in found if _INSTRUCTIONS.fullmatch(feature))


def default_peaks(host: Host, *, vector_bytes: int) -> Peaks:
    """Estimate the peaks of a CPU that has not been calibrated.

    Compute is two fused multiply-adds a cycle on full vectors. A core reads two
    vectors a cycle from L1, and 32 and 8 bytes a cycle from L2 and L3: what the
    vendors' optimisation manuals grant, not what was measured.

    Parameters
    ----------
    host : Host
        Gives the cores, the clock and the caches.
    vector_bytes : int
        Width of one vector register.
    """
    cycles = host.cores * host.ghz  # 1e9 core-cycles a second
    return Peaks(
        gflops=cycles * (vector_bytes // 4) * 2 * 2,
        bandwidth_gbps={
            "l1": cycles * 2 * vector_bytes,
            "l2": cycles * 32,
            "l3": cycles * 8,
            "dram": min(host.cores * 12.0, 100.0),
        },
        cache_bytes=dict(host.cache_bytes),
        dispatch_us=2.0,
        cores=host.cores,
    )


def _host_attrs(host: Host) -> dict[str, Any]:
    """Name this machine's CPU, without what its operating system hides.

    LLVM goes by the model number. A virtual machine often hides extensions of
    its model (AVX-512, say), and using them would be an illegal instruction.
    """
    from tvmfuse._tvm import tvm

    attrs: dict[str, Any] = {
        "kind": "llvm",
        "mtriple": host.triple,
        "mcpu": tvm.target.codegen.llvm_get_system_cpu(),
    }
    if host.arch != "x86_64" or not host.flags:
        return attrs
    flags = {flag.replace("_", "") for flag in host.flags}
    hidden = sorted(
        feature
        for feature in instructions(attrs)
        if _LINUX_FLAGS.get(feature, re.sub(r"[.-]", "", feature)) not in flags
    )
    return {**attrs, "mattr": [f"-{feature}" for feature in hidden]} if hidden else attrs


def _named_attrs(name: str, host: Host) -> dict[str, Any]:
    from tvmfuse._tvm import tvm

    mcpu = _ALIASES.get(name, name)
    triples: tuple[str, ...] = (
        host.triple,
        "x86_64-unknown-linux-gnu",
        "aarch64-unknown-linux-gnu",
    )
    if mcpu.startswith("apple-"):
        triples = ("arm64-apple-macos",)
    for triple in triples:
        if tvm.target.codegen.llvm_is_valid_cpu(mcpu, triple):
            return {"kind": "llvm", "mtriple": triple, "mcpu": mcpu}
    raise TargetError(
        f"target: 'cpu:{name}' needs a CPU that LLVM knows, and it knows none of that name; "
        "give for example cpu, cpu:x86-64-v3, cpu:x86-64-v4, cpu:znver3, cpu:aarch64, "
        "cpu:neoverse-n1, cpu:apple-m1"
    )


def _vectors(features: frozenset[str]) -> tuple[int, int]:
    """Return the width in bytes and the number of vector registers."""
    if "avx512f" in features:
        return 64, 32
    if "neon" in features:
        return 16, 32
    return (32, 16) if "avx2" in features else (16, 16)

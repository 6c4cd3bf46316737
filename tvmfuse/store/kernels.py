"""Find the records of a kernel: the ones of a workload that is structurally equal to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tvmfuse._tvm import tvm, tvm_ffi
from tvmfuse._tvm.failures import FAILURES
from tvmfuse.plan import Tuned
from tvmfuse.store import keys
from tvmfuse.store.lookup import Found, Keyed, Query, Source, find
from tvmfuse.store.records import Device, Record, TargetKey, Workload

Verify = Callable[[Any, Tuned], bool]

_MOST_TRIED = 16  # records of one kernel: the first fits, unless its family changed


def known(sources: Sequence[Source], function: Any) -> tuple[Keyed, ...]:
    """Return each source for each workload of it that is structurally equal to a kernel.

    Parameters
    ----------
    sources : sequence of Source
        The user's store, then the packs beneath it.
    function : tirx.PrimFunc
        Unscheduled S-TIR, with any attributes and names.
    """
    module, bucket = keys.normalise(function), keys.workload_key(function)
    return tuple(
        Keyed(source, workload)
        for source in sources
        for workload in source.workloads(bucket)
        if _is_equal(workload, module)
    )


def trace_of(found: Found, function: Any) -> list[Any]:
    """Return the trace of a record, fetching its blocks by their names in ``function``.

    Blocks that the trace itself makes keep their names.

    Parameters
    ----------
    found : Found
        A record with a trace, from a source of :func:`known`.
    function : tirx.PrimFunc
        The kernel that asks.
    """
    (workload,) = found.source.workloads(found.record.workload.partition("-")[0])
    return renamed(found.record.trace or ([], []), workload.module, function)


def renamed(trace: Sequence[Any], module: str, function: Any) -> list[Any]:
    """Return a trace that fetches its blocks by their names in another, equal kernel.

    Parameters
    ----------
    trace : sequence
        TVM's JSON.
    module : str
        TVM's JSON of the module that it was made for.
    function : tirx.PrimFunc
        The other kernel.
    """
    before = keys.block_names(keys.entry(tvm.ir.load_json(module)))
    names = dict(zip(before, keys.block_names(function), strict=True))
    instructions, decisions = trace
    return [[_fetched(instruction, names) for instruction in instructions], decisions]


@dataclass(frozen=True)
class KernelRecords:
    """What is known of kernels on one device: the ``Records`` of ``plan``.

    Parameters
    ----------
    sources : sequence of Source
        The user's store, then the packs beneath it.
    device : Device
        The device that will run the kernels.
    target : TargetKey
        The target that they are compiled for.
    family_versions : Mapping of str to int
        Version of each family; decisions of another version are not used.
    allow_family : bool
        Whether records of other devices of the same family will do.
    verify : callable, optional
        Says of a kernel whether a record of another TVM computes it right here; without it,
        no such record is used.
    """

    sources: Sequence[Source]
    device: Device
    target: TargetKey
    family_versions: Mapping[str, int] = field(default_factory=dict)
    allow_family: bool = False
    verify: Verify | None = None

    def best(self, family: str, kernel: Any) -> Tuned | None:
        """Return what the best record of a kernel says, or None.

        Parameters
        ----------
        family : str
            Its family.
        kernel : tirx.PrimFunc
            Unscheduled S-TIR, with any attributes and names.
        """
        return next(self.usable(family, kernel), None)

    def usable(self, family: str, kernel: Any) -> Iterator[Tuned]:
        """Yield what the records that may be used say, best first."""
        query = Query(
            keys.workload_key(kernel),
            self.device,
            self.target,
            accumulation=keys.accumulation(kernel),
        )
        sources = known(self.sources, kernel)
        for found in find(sources, query, allow_family=self.allow_family, limit=_MOST_TRIED):
            if not self._is_of(family, found.record):
                continue
            tuned = _tuned(found, kernel)
            if not found.needs_verification or (self.verify and self.verify(kernel, tuned)):
                yield tuned

    def _is_of(self, family: str, record: Record) -> bool:
        if not record.family:  # TVM's own space serves kernels of any family
            return record.trace is not None
        version = self.family_versions.get(family, record.family_version)
        return (record.family, record.family_version) == (family, version)


def _tuned(found: Found, kernel: Any) -> Tuned:
    record = found.record
    if record.family or record.trace is None:
        return Tuned(record.decisions or {}, note=found.note)
    return Tuned(trace=trace_of(found, kernel), note=found.note)


def _is_equal(workload: Workload, module: Any) -> bool:
    try:
        return bool(tvm_ffi.structural_equal(tvm.ir.load_json(workload.module), module))
    except FAILURES:  # another TVM wrote it, in a form that this one does not read
        return False


def _fetched(instruction: Sequence[Any], names: Mapping[str, str]) -> list[Any]:
    name, inputs, attrs, outputs = instruction
    if name != "GetSBlock":
        return list(instruction)
    block, function = attrs
    return [name, inputs, [names.get(block, block), function], outputs]

"""TVM's ``Database`` on a view of a store that is bound to one target and one device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from tvmfuse._tvm import s_tir, tvm
from tvmfuse.errors import StoreError
from tvmfuse.store import kernels, keys
from tvmfuse.store.lookup import Query, Source, find
from tvmfuse.store.queries import Filter
from tvmfuse.store.records import Device, Record, TargetKey
from tvmfuse.store.store import Store

ms = s_tir.meta_schedule

_US = 1e6
_FAILED_S = 1e9


@tvm.ir.utils.derived_object
class StoreDatabase(ms.database.PyDatabase):  # type: ignore[name-defined]
    """The records of a store for one target and one device, as TVM's flows take them.

    ``with database, target: relax.transform.MetaScheduleApplyDatabase()(module)`` works as
    it does with TVM's own. Its own ignores the target, so that a record of a GPU may be
    applied to a CPU; here only records of the device are seen.

    Parameters
    ----------
    store : Store
        Where records are kept and added to.
    target : TargetKey
        The target.
    device : Device
        The device.
    packs : sequence of Source
        Looked into where the store has nothing.
    allow_family : bool
        Whether records of other devices of the family will do.
    allow_unverified : bool
        Whether records of another TVM are handed out; TVM does not check their numbers.
    session : str
        ``uid`` of the session of what is added.
    """

    def __init__(
        self,
        store: Store,
        target: TargetKey,
        device: Device,
        packs: Sequence[Source] = (),
        allow_family: bool = False,  # noqa: FBT001, FBT002 - derived_object takes any by name
        allow_unverified: bool = False,  # noqa: FBT001, FBT002
        session: str = "",
    ) -> None:
        super().__init__()
        self.store = store
        self.target = target
        self.device = device
        self.sources: tuple[Source, ...] = (store, *packs)
        self.allow_family = allow_family
        self.allow_unverified = allow_unverified
        self.session = session

    def has_workload(self, mod: Any) -> bool:
        """Whether the store has a workload that is structurally equal."""
        return bool(kernels.known(self.sources, keys.entry(mod)))

    def commit_workload(self, mod: Any) -> Any:
        """Add a workload unless it is there; return it with the module that was given."""
        self.store.add_workload(keys.workload(keys.entry(mod)), keys.is_same_module)
        return ms.database.Workload(mod)

    def commit_tuning_record(self, record: Any) -> None:
        """Add a record of a trial that worked.

        Raises
        ------
        StoreError
            It is of another kind of target.
        """
        kind = record.target.kind.name if record.target is not None else self.target.kind
        if kind != self.target.kind:
            raise StoreError(
                f"store: this view is of {self.target.kind}, but the record is of {kind}; "
                "make a view of its target"
            )
        times_us = tuple(float(time) * _US for time in record.run_secs or ())
        if not times_us or max(times_us) >= _FAILED_S * _US:
            return  # TVM notes a failure as a run of 1e10 s and forgets why: nothing to keep
        own = keys.workload(keys.entry(record.workload.mod))
        key = self.store.add_workload(own, keys.is_same_module)
        trace = record.as_json()[0]
        stored = self.store.workload(key)
        if stored is not None and stored.module != own.module:
            function = keys.entry(tvm.ir.load_json(stored.module))
            trace = kernels.renamed(trace, own.module, function)
        trial = Record(
            key,
            self.device,
            self.target,
            "ok",
            times_us,
            trace=trace,
            session=self.session,
        )
        self.store.commit(trial)

    def get_top_k(self, workload: Any, top_k: int) -> list[Any]:
        """Return the fastest records of a workload, bound to its module."""
        return self._top(workload.mod, top_k)

    def get_all_tuning_records(self) -> list[Any]:
        """Return all records of the device, each bound to its stored module."""
        modules = {each.key: tvm.ir.load_json(each.module) for each in self.store.workloads()}
        return [
            bind(record, modules[record.workload], self.target)
            for record in self.store.records(self._own())
            if record is not None and record.workload in modules
        ]

    def query_tuning_record(self, mod: Any, target: Any, workload_name: str | None = None) -> Any:
        """Return the best record, bound to the module that asks; None where there is none.

        TVM replays a trace on the module of the record, so a record keeps to the asking
        function's attributes and names only when it is bound to that very module.
        """
        function = keys.entry(mod)
        if target.kind.name != self.target.kind or "tirx.is_scheduled" in (function.attrs or {}):
            return None
        return next(iter(self._top(mod, 1)), None)

    def __len__(self) -> int:
        ((number, _best_us),) = self.store.count(wanted=self._own())
        return int(number)

    def _own(self) -> Filter:
        """Return what the view shows of its store."""
        place = {"device": self.device.fingerprint, "target": self.target.key}
        return Filter(status="ok", has_trace=True, **place)

    def _top(self, mod: Any, limit: int) -> list[Any]:
        function = keys.entry(mod)
        query = Query(keys.workload_key(function), self.device, self.target, has_trace=True)
        sources = kernels.known(self.sources, function)
        return [
            bind(each.record, mod, self.target, kernels.trace_of(each, function))
            for each in find(sources, query, allow_family=self.allow_family, limit=limit)
            if self.allow_unverified or not each.needs_verification
        ]


def bind(record: Record, mod: Any, target: TargetKey, trace: Sequence[Any] | None = None) -> Any:
    """Return a record as TVM's, bound to a module.

    Parameters
    ----------
    record : Record
        One with a trace.
    mod : tvm.IRModule
        A module of one function.
    target : TargetKey
        The target to name in it.
    trace : sequence, optional
        The record's trace, where its blocks have other names in ``mod``.
    """
    function = keys.entry(mod)
    arguments = [each.as_json() for each in ms.arg_info.ArgInfo.from_prim_func(function)]
    seconds = [time / _US for time in record.times_us]
    data = [record.trace if trace is None else trace, seconds, dict(target.attrs), arguments]
    return ms.database.TuningRecord.from_json(data, ms.database.Workload(mod))

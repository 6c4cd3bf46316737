"""The tuning store. All but ``keys``, ``database`` and ``tvm_json`` work without TVM."""

from tvmfuse.store.lookup import Found, KernelRecords, Query, find
from tvmfuse.store.queries import Filter
from tvmfuse.store.records import Device, Record, Session, TargetKey, Versions, Workload
from tvmfuse.store.store import Store, open_store

__all__ = [
    "Device",
    "Filter",
    "Found",
    "KernelRecords",
    "Query",
    "Record",
    "Session",
    "Store",
    "TargetKey",
    "Versions",
    "Workload",
    "find",
    "open_store",
]

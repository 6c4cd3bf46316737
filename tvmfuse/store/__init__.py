"""The tuning store. ``keys``, ``kernels``, ``devices``, ``database`` and ``tvm_json`` need TVM."""

from tvmfuse.store.lookup import Found, Query, find
from tvmfuse.store.queries import Filter
from tvmfuse.store.records import Device, Record, Session, TargetKey, Workload
from tvmfuse.store.store import Store, open_store
from tvmfuse.store.versions import Versions

__all__ = [
    "Device",
    "Filter",
    "Found",
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

"""Devices: one file per kind, found by the name a user gives."""

from tvmfuse.targets.base import Target
from tvmfuse.targets.registry import resolve

__all__ = ["Target", "resolve"]

"""Devices: one file per kind, found by the name a user gives."""

from tvmfuse.targets.base import Target

__all__ = ["Target"]

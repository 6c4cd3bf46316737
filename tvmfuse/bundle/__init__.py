"""A compiled model on the disk: written all or not at all, checked before it is loaded."""

from tvmfuse.bundle.directory import Bundle, check_destination, read, save

__all__ = ["Bundle", "check_destination", "read", "save"]

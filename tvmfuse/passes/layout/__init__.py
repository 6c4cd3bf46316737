"""Choose how tensors lie in memory, per graph: blocked channels, packed weights."""

from tvmfuse.passes.layout.graph import layout

__all__ = ["layout"]

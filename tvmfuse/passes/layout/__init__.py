"""Choose how tensors lie in memory, per graph: blocked channels, packed weights."""

from tvmfuse.passes.layout.graph import Laid, layout

__all__ = ["Laid", "layout"]

"""Which candidates to fuse: disjoint, without cycles, saving the most time."""

from tvmfuse.planner.choice import choose

__all__ = ["choose"]

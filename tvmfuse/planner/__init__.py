"""Which candidates to fuse: disjoint, without cycles, saving the most time."""

from tvmfuse.planner.choice import choose
from tvmfuse.planner.strategies import STRATEGIES, Sampled, Strategy, strategy

__all__ = ["STRATEGIES", "Sampled", "Strategy", "choose", "strategy"]

"""What passes from stage to stage: plain, frozen, printable data.

Nothing here imports TVM, so plans can be read, compared and drawn without it.
A *binding* is one statement ``var = op(...)`` of a Relax function; it is named
by its position, counted over all blocks of the function from 0.
"""

from tvmfuse.plan.choice import Candidate, FusionPlan, Group, Rejection, RunTime
from tvmfuse.plan.graph import INLINED, FunctionGraph, OpGraph, OpKind, OpNode, TensorInfo
from tvmfuse.plan.protocols import BatchCostModel, CostModel, Measure, Peaks, Records, Tuned

__all__ = [
    "INLINED",
    "BatchCostModel",
    "Candidate",
    "CostModel",
    "FunctionGraph",
    "FusionPlan",
    "Group",
    "Measure",
    "OpGraph",
    "OpKind",
    "OpNode",
    "Peaks",
    "Records",
    "Rejection",
    "RunTime",
    "TensorInfo",
    "Tuned",
]

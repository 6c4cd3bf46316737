"""The stages in their order: from a module to a plan, to kernels, to code."""

from tvmfuse._pipeline.build import build, build_planned, kernel_infos
from tvmfuse._pipeline.options import MeasureIn, Options, Planned, Prepared, RecordsOf
from tvmfuse._pipeline.order import plan, prepare, realize
from tvmfuse._pipeline.relax import pipeline
from tvmfuse._pipeline.stages import Progress

__all__ = [
    "MeasureIn",
    "Options",
    "Planned",
    "Prepared",
    "Progress",
    "RecordsOf",
    "build",
    "build_planned",
    "kernel_infos",
    "pipeline",
    "plan",
    "prepare",
    "realize",
]

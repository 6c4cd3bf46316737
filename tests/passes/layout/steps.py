"""What the tests of the layout share: a convolution, and the steps of a laid out graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from tests import graphs
from tests.kernels.contract import MACHINES
from tvmfuse import testing
from tvmfuse._tvm import relax
from tvmfuse.passes.layout import layout
from tvmfuse.passes.partition import partition
from tvmfuse.plan import FusionPlan

op = relax.op
Graph = Callable[..., Any]

MACHINE = MACHINES["8 lanes"]
IMAGE = (1, 16, 6, 7)


def constant(*shape: int, seed: int = 1) -> Any:
    return relax.const(testing.random_array(shape, "float32", seed=seed))


def conv(
    x: Any, filters: int = 16, kernel: int = 3, *, channels: int = 16, seed: int = 1, **attrs: Any
) -> Any:
    """Convolve with random weights, and leave the extents of the image as they are."""
    weight = constant(filters, channels // attrs.get("groups", 1), kernel, kernel, seed=seed)
    return op.nn.conv2d(x, weight, padding=kernel // 2, **attrs)


def laid_out(mod: Any, plan: FusionPlan | None = None) -> Any:
    """Partition a module, every operator by itself unless planned, and lay it out."""
    return layout(partition(mod, plan or FusionPlan()), MACHINE).module


def steps(graph: Graph, *inputs: Any, plan: FusionPlan | None = None) -> list[str]:
    """Return what the laid out function calls, each by its operators."""
    return called(laid_out(graphs.module(graph, *inputs), plan))


def called(mod: Any) -> list[str]:
    found = []
    for block in mod["main"].body.blocks:
        for binding in block.bindings:
            value = binding.value
            if isinstance(value, relax.Call):
                name = value.op.name_hint if hasattr(value.op, "name_hint") else value.op.name
                found.append(_without_numbers(str(name).removeprefix("relax.")))
    return found


def _without_numbers(name: str) -> str:
    return "_".join(part for part in name.split("_") if not part.isdigit())


def assert_same_numbers(graph: Graph, *inputs: Any) -> None:
    """Compare the whole pipeline, fused and not, with TVM's own kernels of plain tensors."""
    mod = graphs.module(graph, *inputs)
    shapes = [tuple(int(d) for d in param.ty.shape) for param in mod["main"].params]
    arrays = [testing.random_array(shape, "float32", seed=i) for i, shape in enumerate(shapes)]
    plain = testing.run(testing.compile_plainly(partition(mod, FusionPlan())), arrays)
    for options in (None, graphs.UNFUSED):
        found = graphs.run(mod, *arrays, target=graphs.on(MACHINE), options=options)
        for mine, expected in zip(found, plain, strict=True):
            testing.assert_close(mine, expected.astype(np.float64))

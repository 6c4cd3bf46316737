"""Rows of a batch that meet one weight stay with the family of products, epilogue and all."""

from __future__ import annotations

import numpy as np
import pytest

from tests import graphs
from tvmfuse import _pipeline, targets
from tvmfuse._tvm import relax

WEIGHT = np.ones((64, 64), "float32")


@pytest.mark.parametrize("batch", [1, 2])
def test_an_epilogue_with_extents_of_64_bits_is_tiled_with_its_product(batch: int) -> None:
    def graph(x: relax.Expr) -> relax.Expr:
        rows = relax.op.matmul(x, relax.const(WEIGHT))
        return relax.op.nn.gelu(relax.op.add(rows, relax.const(WEIGHT[0])))

    prepared = _pipeline.prepare(graphs.module(graph, (batch, 128, 64)), targets.resolve("cpu"))
    (kernel,) = prepared.schedules.kernels.values()
    assert (kernel.family, kernel.note) == ("gemm", "")

"""Parts that are themselves joined from parts are computed in every task."""

from __future__ import annotations

from typing import Any

import numpy as np

import tvmfuse
from tests import graphs
from tvmfuse import testing
from tvmfuse._tvm import relax

op = relax.op
WIDTH = 64


def rotated(x: Any, cos: Any, sin: Any) -> Any:
    """Return the rotary embedding of (1, rows, heads, width), by halves."""
    x = op.permute_dims(x, [0, 2, 1, 3])
    low = op.strided_slice(x, axes=[3], begin=[0], end=[WIDTH // 2])
    high = op.strided_slice(x, axes=[3], begin=[WIDTH // 2], end=[WIDTH])
    return op.add(
        op.multiply(x, cos), op.multiply(op.concat([op.negative(high), low], axis=-1), sin)
    )


def expected(x: Any, cos: Any, sin: Any) -> Any:
    x = x.astype("float64").transpose(0, 2, 1, 3)
    low, high = np.split(x, 2, axis=-1)
    return x * cos + np.concatenate([-high, low], -1) * sin


def test_two_rotations_of_many_rows_are_right() -> None:
    query, key = (testing.random_array((1, 128, heads, WIDTH), "float32") for heads in (32, 4))
    cos, sin = (testing.random_array((1, 1, 128, WIDTH), "float32", seed=i) for i in (1, 2))
    angles = relax.const(cos), relax.const(sin)
    module = graphs.module(lambda q, k: [rotated(q, *angles), rotated(k, *angles)], query, key)
    compiled = graphs.compiled(module)
    assert [kernel.family for kernel in compiled.kernels] == ["joined"]
    for found, x in zip(tvmfuse.Session.of(compiled)(query, key), (query, key), strict=True):
        testing.assert_close(found, expected(x, cos, sin))

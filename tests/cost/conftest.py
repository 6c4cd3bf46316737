"""Small operator graphs and a device for the tests of the cost model."""

from collections.abc import Callable

import pytest

from tvmfuse.plan import OpGraph, OpKind, OpNode, Peaks, TensorInfo


@pytest.fixture
def peaks() -> Peaks:
    """A device whose numbers are easy to divide by."""
    return Peaks(
        gflops=100.0,
        bandwidth_gbps={"l1": 400.0, "l2": 100.0, "l3": 40.0, "dram": 10.0},
        cache_bytes={"l1": 32 << 10, "l2": 1 << 20, "l3": 16 << 20},
        dispatch_us=2.0,
        cores=2,
    )


@pytest.fixture
def chain() -> Callable[..., OpGraph]:
    """Operators in a row, each of one operation per element."""

    def build(*kinds: OpKind, size: int = 1 << 20, dtype: str = "float32") -> OpGraph:
        tensors = tuple(TensorInfo((size,), dtype) for _ in range(len(kinds) + 1))
        ops = tuple(
            OpNode(f"relax.{kind}", kind, (i,), (i + 1,), 0 if kind == "view" else size, i)
            for i, kind in enumerate(kinds)
        )
        return OpGraph(tensors, ops, (0,), (len(kinds),))

    return build


@pytest.fixture
def matmul() -> Callable[..., OpGraph]:
    """``x @ w`` with a constant ``w``, followed by elementwise operators."""

    def build(m: int, n: int, k: int, *, epilogue: int = 0) -> OpGraph:
        out = TensorInfo((m, n), "float32")
        tensors = (
            TensorInfo((m, k), "float32"),
            TensorInfo((k, n), "float32", is_constant=True),
            *(out for _ in range(epilogue + 1)),
        )
        ops = [OpNode("relax.matmul", "matmul", (0, 1), (2,), 2 * m * n * k, 0)]
        ops += [
            OpNode("relax.nn.relu", "elementwise", (i + 1,), (i + 2,), m * n, i)
            for i in range(1, epilogue + 1)
        ]
        return OpGraph(tensors, tuple(ops), (0, 1), (len(tensors) - 1,))

    return build

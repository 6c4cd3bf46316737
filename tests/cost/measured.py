"""Made-up measurements whose law is known, and models that learned from them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from tvmfuse.cost import data, examples, kernel, training
from tvmfuse.cost.roofline import Roofline
from tvmfuse.cost.trained import Trained
from tvmfuse.plan import OpGraph, OpNode, Peaks, TensorInfo

PEAKS = Peaks(
    gflops=200.0,
    bandwidth_gbps={"l1": 400.0, "l2": 200.0, "l3": 100.0, "dram": 40.0},
    cache_bytes={"l1": 32 << 10, "l2": 1 << 20, "l3": 32 << 20},
    dispatch_us=1.0,
    cores=2,
    source="measured",
)
RUN = data.Run("Test CPU", "x86-64-v3", "cpu:x86-64-v3", 2, PEAKS)


def elementwise(size: int, length: int) -> OpGraph:
    """Operators in a row."""
    tensors = tuple(TensorInfo((size // 16, 16), "float32") for _ in range(length + 1))
    ops = tuple(OpNode("relax.exp", "elementwise", (i,), (i + 1,), size, i) for i in range(length))
    return OpGraph(tensors, ops, (0,), (length,))


def product(rows: int, columns: int, depth: int, *, epilogue: int = 0) -> OpGraph:
    """A product with constant weights and elementwise operators behind it."""
    out = TensorInfo((rows, columns), "float32")
    weight = TensorInfo((depth, columns), "float32", is_constant=True)
    tensors = (TensorInfo((rows, depth), "float32"), weight, *(out for _ in range(epilogue + 1)))
    flops = 2 * rows * columns * depth
    ops = [OpNode("relax.matmul", "matmul", (0, 1), (2,), flops, 0)]
    ops += [
        OpNode("relax.nn.relu", "elementwise", (i + 1,), (i + 2,), rows * columns, i)
        for i in range(1, epilogue + 1)
    ]
    return OpGraph(tensors, tuple(ops), (0, 1), (len(tensors) - 1,))


def true_us(graph: OpGraph) -> float:
    """What the machine of these tests takes: products half, the rest three times the prior."""
    (work,) = kernel.together(graph)
    return Roofline(PEAKS).kernel_us(work) * (0.5 if "matmul" in work.flops else 3.0)


def graphs() -> Iterator[tuple[str, OpGraph]]:
    for i in range(8):
        for length in range(1, 6):
            for size in (256, 4096, 65536, 1 << 20):
                yield f"net{i}", elementwise(size * (i + 1), length)
        for rows, columns in ((16, 64), (64, 64), (96, 256)):
            for epilogue in range(3):
                yield (
                    f"net{i}",
                    product(rows, columns * (1 + i % 3), 32 * (i + 1), epilogue=epilogue),
                )


def measurements(
    us: Callable[[OpGraph], float] = true_us, run: data.Run = RUN
) -> data.Measurements:
    """Return every graph as a group, and each of its operators alone."""
    kernels, used = [], 0
    for name, graph in graphs():
        ops = tuple(replace(op, binding=op.binding + used) for op in graph.ops)
        used += len(ops)
        whole = replace(graph, ops=ops)
        parts = [kernel.alone(whole, op) for op in ops] if len(ops) > 1 else []
        for each in (whole, *parts):
            pattern = "chain" if len(each.ops) > 1 else "single"
            about = (name, f"family of {name}", "none", pattern, "gemm", "family", each)
            place = tuple(op.binding for op in each.ops)
            kernels.append(data.MeasuredKernel(*about, us(each) - data.CALL_US, 0.01, 1, (place,)))
    plan = data.MeasuredPlan("net0", "family of net0", "none", 100.0, 1.0, 0.0, ((0, 1),))
    return data.Measurements(run, tuple(kernels), (plan,))


def trained() -> Trained:
    return training.train(RUN, examples.of([measurements()]), boosting_rounds=60)

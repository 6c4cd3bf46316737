"""How long collecting and planning take on graphs of 1,000 to 100,000 operators.

Each graph is a stack of transformer layers and residual convolution blocks, and each
size runs in a process of its own, so that its peak of memory is its own.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

SIZES = (1_000, 10_000, 100_000)
_ROWS, _WIDTH, _HEADS = 16, 32, 2
_CHANNELS, _SIDE = 8, 8


@dataclass(frozen=True)
class Figures:
    """What one graph took: seconds of each stage, and the peak of memory above TVM's own."""

    n_operators: int
    candidates: int
    groups: int
    collect_s: float
    plan_s: float
    partition_s: float
    canonicalise_s: float
    memory_mib: float


def stack(n_operators: int) -> Any:
    """Return a module of about so many operators, in canonical form or close to it."""
    from tvmfuse._tvm import relax

    op = relax.op
    rng = np.random.default_rng(0)
    square, wide, narrow = (
        relax.const(rng.normal(0, 0.1, shape).astype("float32"))
        for shape in ((_WIDTH, _WIDTH), (_WIDTH, 4 * _WIDTH), (4 * _WIDTH, _WIDTH))
    )
    bias, wide_bias, gain = (
        relax.const(rng.normal(0, 0.1, size).astype("float32"))
        for size in (_WIDTH, 4 * _WIDTH, _WIDTH)
    )
    kernel = relax.const(rng.normal(0, 0.1, (_CHANNELS, _CHANNELS, 3, 3)).astype("float32"))
    offset = relax.const(rng.normal(0, 0.1, (_CHANNELS, 1, 1)).astype("float32"))
    scale = relax.const(np.float32(0.25))
    builder = relax.BlockBuilder()
    emit = builder.emit
    count = 0

    def heads(x: Any) -> Any:
        y = emit(op.add(emit(op.matmul(x, square)), bias))
        split = emit(op.reshape(y, (_ROWS, _HEADS, _WIDTH // _HEADS)))
        return emit(op.permute_dims(split, [1, 0, 2]))

    def layer(x: Any) -> Any:
        normed = emit(op.nn.layer_norm(x, gain, bias, [-1]))
        q, k, v = (heads(normed) for _ in range(3))
        scores = emit(op.matmul(q, emit(op.permute_dims(k, [0, 2, 1]))))
        weights = emit(op.nn.softmax(emit(op.multiply(scores, scale))))
        mixed = emit(op.permute_dims(emit(op.matmul(weights, v)), [1, 0, 2]))
        joined = emit(op.reshape(mixed, (_ROWS, _WIDTH)))
        x = emit(op.add(emit(op.add(emit(op.matmul(joined, square)), bias)), x))
        normed = emit(op.nn.layer_norm(x, gain, bias, [-1]))
        hidden = emit(op.nn.gelu(emit(op.add(emit(op.matmul(normed, wide)), wide_bias))))
        return emit(op.add(emit(op.add(emit(op.matmul(hidden, narrow)), bias)), x))

    def block(x: Any) -> Any:
        y = emit(op.nn.conv2d(x, kernel, padding=(1, 1, 1, 1)))
        y = emit(op.nn.relu(emit(op.add(y, offset))))
        y = emit(op.add(emit(op.nn.conv2d(y, kernel, padding=(1, 1, 1, 1))), offset))
        y = emit(op.nn.relu(emit(op.add(y, x))))
        gate = emit(op.sigmoid(emit(op.mean(y, axis=[2, 3], keepdims=True))))
        return emit(op.multiply(y, gate))

    text = relax.Var("text", relax.TensorType((_ROWS, _WIDTH), "float32"))
    image = relax.Var("image", relax.TensorType((1, _CHANNELS, _SIDE, _SIDE), "float32"))
    with builder.function("main", [text, image]):
        with builder.dataflow():
            x, y = text, image
            while count < n_operators:
                x, y = layer(x), block(y)
                count += 33 + 10
            results = relax.Tuple([builder.emit_output(op.abs(x)), builder.emit_output(op.abs(y))])
        builder.emit_func_output(results)
    return builder.get()


def measure(n_operators: int) -> Figures:
    """Collect and plan one graph in this process."""
    from tvmfuse._pipeline import Options
    from tvmfuse.cost.roofline import Roofline
    from tvmfuse.passes.canonicalise import canonicalise
    from tvmfuse.passes.collect import collect
    from tvmfuse.passes.partition import partition
    from tvmfuse.planner import choose
    from tvmfuse.targets import resolve

    module = stack(n_operators)
    before = _peak_mib()
    start = time.perf_counter()
    module = canonicalise(module)
    canonical = time.perf_counter()
    found = collect(module, Options().registry)
    collected = time.perf_counter()
    plan = choose(found.graphs, found.candidates, Roofline(resolve("cpu").peaks))
    planned = time.perf_counter()
    memory = _peak_mib() - before
    partition(module, plan)
    end = time.perf_counter()
    return Figures(
        n_operators=sum(bool(name) for name in found.graphs["main"].ops),
        candidates=len(found.candidates),
        groups=len(plan.groups),
        collect_s=collected - canonical,
        plan_s=planned - collected,
        partition_s=end - planned,
        canonicalise_s=canonical - start,
        memory_mib=memory,
    )


def _peak_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


if __name__ == "__main__":
    n = int(sys.argv[1])
    print(json.dumps(asdict(measure(n))))

"""Compute the features of a kernel, without TVM."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict

from tvmfuse.cost import geometry, memory
from tvmfuse.cost.features import NO_GPU, UNKNOWN, Features, Resources
from tvmfuse.cost.kernel import Kernel, merged
from tvmfuse.cost.rates import LEVELS, Rates
from tvmfuse.cost.roofline import Roofline, has_cores
from tvmfuse.plan import OpGraph, Peaks

# Outputs that keep one core busy for a while; what the schedules cut work into.
_GRAIN = 4096

_WAYS = ("read", "written")


def extract(
    graph: OpGraph,
    parts: Sequence[Kernel],
    peaks: Peaks,
    *,
    rates: Rates | None = None,
    is_tuned: bool = False,
    resources: Resources | None = None,
) -> Features:
    """Compute the features of a kernel on a device.

    Parameters
    ----------
    graph : OpGraph
        Its operators and tensors.
    parts : Sequence[Kernel]
        The work that they are as one kernel, part by part where several were joined.
    peaks : Peaks
        The device.
    rates : Rates, optional
        What kernels reach of the device's peaks.
    is_tuned : bool
        Whether a record gives its schedule.
    resources : Resources, optional
        What an assembler reports of it, where it is a GPU's.
    """
    kernel = merged(parts)
    resources = resources or (NO_GPU if has_cores(peaks) else UNKNOWN)
    return Features(
        **_prior(parts, Roofline(peaks, rates or Rates())),
        **_arithmetic(graph, kernel),
        **_traffic(graph, kernel),
        **_levels(parts, peaks),
        **_fill(kernel, peaks),
        **_shape(graph),
        **_parallelism(kernel, peaks),
        **_counts(graph),
        **asdict(resources),
        starts_threads=kernel.starts_threads,
        is_tuned=is_tuned,
        launches=1,
        device_gflops=peaks.gflops,
        device_l2_gbps=peaks.bandwidth_gbps.get("l2", 0.0),
        device_dram_gbps=peaks.bandwidth_gbps.get("dram", 0.0),
        device_dispatch_us=peaks.dispatch_us,
        device_cores=peaks.cores,
    )


def _prior(parts: Sequence[Kernel], roofline: Roofline) -> dict[str, float]:
    return {
        "prior_us": sum(map(roofline.kernel_us, parts)),
        "compute_us": sum(map(roofline.compute_us, parts)),
        "memory_us": sum(map(roofline.memory_us, parts)),
    }


def _arithmetic(graph: OpGraph, kernel: Kernel) -> dict[str, float]:
    flops = kernel.flops
    once = sum(op.flops for op in graph.ops)
    depthwise = sum(op.flops for op in graph.ops if geometry.is_depthwise(graph, op))
    return {
        "flops": kernel.total_flops,
        "matmul_flops": flops.get("matmul", 0.0),
        "conv_flops": flops.get("conv", 0.0) - depthwise,
        "depthwise_flops": depthwise,
        "window_flops": flops.get("pooling", 0.0),
        "reduction_flops": flops.get("reduction", 0.0),
        "elementwise_flops": flops.get("elementwise", 0.0) + flops.get("broadcast", 0.0),
        "special_functions": sum(
            kernel.effort.get(work, 0.0) for work in ("special", "library", "division")
        ),
        "recompute_ratio": kernel.total_flops / once if once else 1.0,
        "intensity": kernel.total_flops / max(1, kernel.total_bytes),
    }


def _traffic(graph: OpGraph, kernel: Kernel) -> dict[str, float]:
    made = {i for op in graph.ops if op.kind != "view" for i in op.outputs}
    inside = made - set(graph.outputs)
    return {
        "activation_bytes": kernel.activation_bytes,
        "constant_bytes": kernel.constant_bytes,
        "written_bytes": kernel.written_bytes,
        "inner_bytes": sum(graph.tensors[i].n_bytes for i in inside),
        "repeated_bytes": geometry.repeated_bytes(graph),
    }


def _levels(parts: Sequence[Kernel], peaks: Peaks) -> dict[str, float]:
    """Return the bytes that each level of the memory serves: weights come from the last cache."""
    found = dict.fromkeys((f"{level}_{way}_bytes" for level in LEVELS for way in _WAYS), 0.0)
    for part in parts:
        near = memory.level_name(peaks, part.total_bytes)
        far = memory.level_name(peaks, part.constant_bytes, last_cache_only=has_cores(peaks))
        found[f"{near}_read_bytes"] += part.activation_bytes
        found[f"{far}_read_bytes"] += part.constant_bytes
        found[f"{near}_written_bytes"] += part.written_bytes
    return found


def _fill(kernel: Kernel, peaks: Peaks) -> dict[str, float]:
    capacity = memory.capacities(peaks)
    return {
        f"{level}_fill": kernel.total_bytes / capacity[level] if capacity.get(level) else 0.0
        for level in ("l1", "l2", "l3")
    }


def _shape(graph: OpGraph) -> dict[str, float]:
    main = geometry.main(graph)
    innermost, channels = geometry.innermost(graph), geometry.image_channels(graph)
    per_channel, other = geometry.stretched(graph)
    return {
        "image_channels": channels,
        "channel_waste": _waste(channels, 16),
        "half_channel_waste": _waste(channels, 8),
        "innermost_waste": _waste(innermost, 16),
        "channel_operands": per_channel,
        "row_operands": other,
        "reduction_length": geometry.reduction_length(graph),
        "rows": main.rows,
        "columns": main.columns,
        "row_waste": _waste(main.rows, 6),
        "column_waste": _waste(main.columns, 16),
        "window": main.window,
        "stride": main.stride,
        "channels": main.channels,
        "innermost": innermost,
    }


def _waste(extent: float, tile: int) -> float:
    """Return the share of the last tile that is empty, over all tiles."""
    return 1.0 - extent / (tile * math.ceil(extent / tile)) if extent else 0.0


def _parallelism(kernel: Kernel, peaks: Peaks) -> dict[str, float]:
    pieces = max(1, math.ceil(kernel.parallelism / _GRAIN))
    waves = math.ceil(pieces / peaks.cores)
    return {
        "parallelism": kernel.parallelism,
        "waves": waves,
        "idle_share": 1.0 - pieces / (waves * peaks.cores),
    }


def _counts(graph: OpGraph) -> dict[str, float]:
    kinds = Counter(op.kind for op in graph.ops)
    ends = [graph.tensors[i] for i in {*graph.inputs, *graph.outputs}]
    sizes = [t.n_bytes / t.size for t in graph.tensors if t.size]
    return {
        "operators": len(graph.ops) - kinds["view"],
        "inputs": len(set(graph.inputs)),
        "outputs": len(set(graph.outputs)),
        "live_values": _live_values(graph),
        "images": sum(len(tensor.shape) == 4 and not tensor.is_constant for tensor in ends),
        "layout_changes": kinds["injective"],
        "reductions": kinds["reduction"] + kinds["pooling"],
        "products": kinds["matmul"] + kinds["conv"],
        "broadcasts": kinds["broadcast"],
        "opaques": kinds["opaque"],
        "element_bytes": max(sizes, default=0.0),
        "is_narrow": any(size < 4 for size in sizes),
    }


def _live_values(graph: OpGraph) -> int:
    """Return how many values are needed at one time, at most, in program order."""
    last = {i: at for at, op in enumerate(graph.ops) for i in op.inputs}
    live: set[int] = set()
    most = 0
    for at, op in enumerate(graph.ops):
        live.update((*op.inputs, *op.outputs))
        most = max(most, len(live))
        live -= {i for i in live if last.get(i, at) <= at}
    return most

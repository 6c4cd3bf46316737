"""A candidate as named numbers, for a learned cost model."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import astuple, dataclass, fields

from tvmfuse.cost import kernel, memory
from tvmfuse.cost.kernel import Kernel
from tvmfuse.plan import OpGraph, Peaks


@dataclass(frozen=True)
class Features:
    """A candidate on a device as the numbers that a learned cost model sees.

    ``fused_*`` describes all operators as one kernel, ``apart_*`` each operator as
    one of its own. A symbolic extent counts as 1.
    """

    operators: float
    """Operators, views included."""
    apart_launches: float
    """Kernels when apart: every operator but the views."""
    flops: float
    """Operations, none done twice, in units of float32."""
    recomputed_flops: float
    """Operations added because inlined values are computed where they are read."""
    matmul_flops: float
    """Part of ``flops`` in matrix products."""
    conv_flops: float
    """Part of ``flops`` in convolutions."""
    fused_read_bytes: float
    """Distinct bytes that the one kernel reads, constants included."""
    fused_written_bytes: float
    """Bytes that the one kernel writes."""
    apart_read_bytes: float
    """Bytes that the kernels apart read in total, constants included."""
    apart_written_bytes: float
    """Bytes that the kernels apart write in total."""
    constant_bytes: float
    """Distinct bytes of constants."""
    intermediates: float
    """Values that exist only between the operators."""
    intermediate_bytes: float
    """Bytes of these values."""
    inputs: float
    """Tensors read from outside, constants included."""
    outputs: float
    """Tensors that leave."""
    fused_parallelism: float
    """Elements of the largest output of the one kernel."""
    apart_parallelism: float
    """The same of the least parallel of the kernels apart."""
    fused_l1_fill: float
    """Working set of the one kernel as a share of all cores' L1; 0 if not known."""
    fused_l2_fill: float
    """The same for L2."""
    fused_l3_fill: float
    """The same for L3."""
    apart_l1_fill: float
    """Largest working set of the kernels apart as a share of all cores' L1."""
    apart_l2_fill: float
    """The same for L2."""
    apart_l3_fill: float
    """The same for L3."""
    intensity: float
    """Operations of the one kernel per byte that it touches."""
    element_bytes: float
    """Size of the largest element type."""
    reductions: float
    """Operators of kind reduction or pooling."""
    injectives: float
    """Operators that move elements."""
    broadcasts: float
    """Operators with an operand that is stretched."""
    opaques: float
    """Operators of unknown kind."""
    device_gflops: float
    """Peak of the device."""
    device_dram_gbps: float
    """Memory bandwidth of the device."""
    device_dispatch_us: float
    """Time to start one kernel."""
    device_cores: float
    """Cores or multiprocessors."""

    @classmethod
    def names(cls) -> tuple[str, ...]:
        """Return the names of the features in the order of :meth:`vector`."""
        return tuple(field.name for field in fields(cls))

    def vector(self) -> tuple[float, ...]:
        """Return the features as plain numbers in the order of :meth:`names`."""
        return tuple(float(value) for value in astuple(self))


def extract(graph: OpGraph, peaks: Peaks) -> Features:
    """Compute the features of a candidate on a device.

    Parameters
    ----------
    graph : OpGraph
        The candidate's operators and tensors.
    peaks : Peaks
        The device.
    """
    fused, apart = kernel.together(graph), kernel.apart(graph)
    kinds = Counter(op.kind for op in graph.ops)
    return Features(
        operators=len(graph.ops),
        apart_launches=len(apart),
        **_arithmetic(fused, apart),
        **_traffic(fused, apart),
        **_tensors(graph),
        **_fill("fused", fused, peaks),
        **_fill("apart", apart, peaks),
        fused_parallelism=min((k.parallelism for k in fused), default=0),
        apart_parallelism=min((k.parallelism for k in apart), default=0),
        reductions=kinds["reduction"] + kinds["pooling"],
        injectives=kinds["injective"],
        broadcasts=kinds["broadcast"],
        opaques=kinds["opaque"],
        device_gflops=peaks.gflops,
        device_dram_gbps=peaks.bandwidth_gbps.get("dram", 0.0),
        device_dispatch_us=peaks.dispatch_us,
        device_cores=peaks.cores,
    )


def _arithmetic(fused: Sequence[Kernel], apart: Sequence[Kernel]) -> dict[str, float]:
    flops = sum(k.total_flops for k in apart)
    done = sum(k.total_flops for k in fused)
    return {
        "flops": flops,
        "recomputed_flops": done - flops,
        "matmul_flops": sum(k.flops.get("matmul", 0.0) for k in apart),
        "conv_flops": sum(k.flops.get("conv", 0.0) for k in apart),
        "intensity": done / max(1, sum(k.total_bytes for k in fused)),
    }


def _traffic(fused: Sequence[Kernel], apart: Sequence[Kernel]) -> dict[str, float]:
    return {
        "fused_read_bytes": sum(k.read_bytes for k in fused),
        "fused_written_bytes": sum(k.written_bytes for k in fused),
        "apart_read_bytes": sum(k.read_bytes for k in apart),
        "apart_written_bytes": sum(k.written_bytes for k in apart),
        "constant_bytes": sum(k.constant_bytes for k in fused),
    }


def _tensors(graph: OpGraph) -> dict[str, float]:
    made = {index for op in graph.ops if op.kind != "view" for index in op.outputs}
    inside = made - set(graph.outputs)
    return {
        "inputs": len(set(graph.inputs)),
        "outputs": len(set(graph.outputs)),
        "intermediates": len(inside),
        "intermediate_bytes": sum(graph.tensors[i].n_bytes for i in inside),
        "element_bytes": max((t.n_bytes / t.size for t in graph.tensors if t.size), default=0.0),
    }


def _fill(prefix: str, kernels: Sequence[Kernel], peaks: Peaks) -> dict[str, float]:
    working_set = max((k.total_bytes for k in kernels), default=0)
    capacity = memory.capacities(peaks)
    return {
        f"{prefix}_{level}_fill": working_set / capacity[level] if level in capacity else 0.0
        for level in ("l1", "l2", "l3")
    }

import math
import subprocess
import sys
from dataclasses import replace

import pytest

from tests.cost.measured import PEAKS, elementwise, product
from tvmfuse.cost import kernel
from tvmfuse.cost.extraction import extract
from tvmfuse.cost.features import Features, Resources
from tvmfuse.plan import OpGraph, OpNode, TensorInfo


def of(graph: OpGraph, **options) -> Features:
    return extract(graph, kernel.together(graph), PEAKS, **options)


def test_vector_follows_names():
    found = of(elementwise(4096, 2))
    assert len(Features.names()) == len(set(Features.names())) == len(found.vector())
    assert dict(zip(Features.names(), found.vector(), strict=True))["operators"] == 2.0
    assert all(isinstance(v, float) and math.isfinite(v) for v in found.vector())


def test_bytes_are_told_by_the_level_that_serves_them():
    small, large = of(elementwise(1024, 2)), of(elementwise(1 << 24, 2))
    assert (small.l1_read_bytes, small.l1_written_bytes) == (4096, 4096)
    assert small.dram_read_bytes == small.l3_written_bytes == 0
    assert (large.dram_read_bytes, large.dram_written_bytes) == (4 << 24, 4 << 24)
    weights = of(product(8, 16, 16))
    assert weights.l3_read_bytes == weights.constant_bytes  # gone cold since the last run
    assert weights.l1_read_bytes == weights.activation_bytes


def test_resources_of_a_gpu_kernel_are_features_and_missing_without_its_assembler():
    graph = elementwise(4096, 2)
    gpu = replace(PEAKS, bandwidth_gbps={"l2": 1000.0, "dram": 200.0}, cache_bytes={"l2": 4 << 20})
    told = extract(graph, kernel.together(graph), gpu, resources=Resources(40, 8, 1024))
    assert (told.registers, told.spill_bytes, told.shared_bytes) == (40, 8, 1024)
    untold = extract(graph, kernel.together(graph), gpu)
    assert all(map(math.isnan, (untold.registers, untold.spill_bytes, untold.shared_bytes)))
    assert of(graph).registers == 0  # a CPU has no such limit


def test_every_feature_is_explained():
    source = open(sys.modules[Features.__module__].__file__).read()  # noqa: PTH123, SIM115
    body = source.partition("class Features")[2].partition("@classmethod")[0]
    assert body.count(": float\n") == body.count('"""') // 2 - 1 == len(Features.names())


def test_chain_has_the_features_of_its_traffic():
    found, n_bytes = of(elementwise(1 << 20, 3)), 4 << 20
    assert (found.activation_bytes, found.written_bytes) == (n_bytes, n_bytes)
    assert found.inner_bytes == 2 * n_bytes
    assert found.special_functions == 3 << 20
    assert found.l3_fill == 2 * n_bytes / PEAKS.cache_bytes["l3"]
    assert (found.recompute_ratio, found.repeated_bytes) == (1.0, 0.0)


def test_product_is_told_by_its_tiles():
    found = of(product(9, 24, 64, epilogue=2))
    assert (found.rows, found.columns, found.reduction_length) == (9, 24, 64)
    assert (found.row_waste, found.column_waste) == (0.25, 0.25)
    assert found.matmul_flops == 2 * 9 * 24 * 64
    assert found.constant_bytes == 4 * 64 * 24


def convolution(*, groups: int = 1) -> OpGraph:
    tensors = (
        TensorInfo((1, 8, 28, 28), "float32"),
        TensorInfo((24 if groups == 1 else 8, 8 // groups, 3, 3), "float32", is_constant=True),
        TensorInfo((1, 24 if groups == 1 else 8, 14, 14), "float32"),
    )
    flops = 2 * tensors[2].size * 8 // groups * 9
    return OpGraph(
        tensors, (OpNode("relax.nn.conv2d", "conv", (0, 1), (2,), flops, 0),), (0, 1), (2,)
    )


def test_convolution_is_told_by_its_window():
    found = of(convolution())
    assert (found.rows, found.columns, found.channels) == (14 * 14, 24, 8)
    assert (found.window, found.stride, found.reduction_length) == (3, 2, 72)
    assert found.depthwise_flops == 0
    assert (found.image_channels, found.channel_waste, found.half_channel_waste) == (8, 0.5, 0.0)


def test_depthwise_convolution_is_its_own_kind():
    found = of(convolution(groups=8))
    assert found.conv_flops == 0
    assert found.depthwise_flops == 2 * 8 * 14 * 14 * 9


def test_stretched_operands_are_counted_by_their_axes():
    shapes = ((1, 8, 4, 4), (1, 8, 1, 1), (1, 1, 4, 4), ())
    tensors = (
        *(TensorInfo(shape, "float32") for shape in shapes),
        TensorInfo(shapes[0], "float32"),
    )
    ops = (OpNode("relax.add", "broadcast", (0, 1, 2, 3), (4,), 128, 0),)
    found = of(OpGraph(tensors, ops, (0, 1, 2, 3), (4,)))
    assert (found.channel_operands, found.row_operands) == (1, 1)
    assert found.repeated_bytes == 4 * (128 - 8 + 128 - 16 + 128 - 1)


def test_registers_are_those_that_an_assembler_tells():
    found = of(elementwise(64, 1), resources=Resources(40, 8, 1024), is_tuned=True)
    assert (found.registers, found.spill_bytes, found.shared_bytes) == (40, 8, 1024)
    assert found.is_tuned == 1


def test_live_values_are_what_must_be_kept():
    tensors = tuple(TensorInfo((16,), "float32") for _ in range(5))
    ops = (
        OpNode("relax.exp", "elementwise", (0,), (1,), 16, 0),
        OpNode("relax.tanh", "elementwise", (0,), (2,), 16, 1),
        OpNode("relax.add", "elementwise", (1, 2), (3,), 16, 2),
        OpNode("relax.abs", "elementwise", (3,), (4,), 16, 3),
    )
    assert of(OpGraph(tensors, ops, (0,), (4,))).live_values == 3


@pytest.mark.parametrize("module", ["features", "roofline", "learned", "training", "judging"])
def test_cost_needs_no_tvm(module):
    code = (
        f"import sys, tvmfuse.cost.{module}, tvmfuse.planner;"
        "sys.exit(any(name in sys.modules for name in ('tvm', 'tvm_ffi', 'xgboost')))"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0

"""Weights of 4 and 8 bits in groups are dequantised right, and stay as they are stored."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from tvmfuse import testing
from tvmfuse.frontend import import_model
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.passes.collect import collect
from tvmfuse.patterns.narrow_matmul import NarrowMatmul
from tvmfuse.patterns.registry import Registry

RNG = np.random.default_rng(0)
K, N = 64, 24
X = RNG.standard_normal((3, K)).astype("float32")
LIMITS = {"int4": (-8, 8), "uint4": (0, 16), "int8": (-128, 128), "uint8": (0, 256)}


def model_of(nodes: list[Any], tensors: list[Any], *, opset: int = 21) -> onnx.ModelProto:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, X.shape)
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (len(X), N))
    graph = helper.make_graph(nodes, "g", [x], [y], initializer=tensors)
    imports = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=imports, ir_version=10)


def run(model: onnx.ModelProto, *, is_stored: bool = True) -> Any:
    module = canonicalise(import_model(model).module)
    found = collect(module, Registry((NarrowMatmul(),))).candidates
    assert bool(found) is is_stored
    return testing.run(testing.compile_plainly(module), [X])[0]


def blocked(dtype: str, *, size: int, axis: int, has_zero: bool) -> onnx.ModelProto:
    """Return a model whose weight is blocked along its sum, as it is or to be transposed."""
    low, high = LIMITS[dtype]
    shape = (K, N) if axis == 0 else (N, K)
    few = tuple(-(-d // size) if i == axis else d for i, d in enumerate(shape))
    kind = getattr(TensorProto, dtype.upper())

    def integers(name: str, shape: tuple[int, ...]) -> Any:
        return helper.make_tensor(name, kind, shape, RNG.integers(low, high, shape).ravel())

    scale = (RNG.random(few) / high).astype("float32")
    tensors = [integers("q", shape), numpy_helper.from_array(scale, "s")]
    names = ["q", "s"]
    if has_zero:
        tensors.append(integers("z", few))
        names.append("z")
    right = "w" if axis == 0 else "t"
    nodes = [helper.make_node("DequantizeLinear", names, ["w"], axis=axis, block_size=size)]
    if axis == 1:
        nodes.append(helper.make_node("Transpose", ["w"], ["t"], perm=[1, 0]))
    return model_of([*nodes, helper.make_node("MatMul", ["x", right], ["y"])], tensors)


@pytest.mark.parametrize("dtype", LIMITS)
@pytest.mark.parametrize("axis", [0, 1])
def test_blocked_weight_equals_onnx_reference(dtype: str, axis: int) -> None:
    for has_zero in (False, True):
        model = blocked(dtype, size=16, axis=axis, has_zero=has_zero)
        (expected,) = ReferenceEvaluator(model).run(None, {"x": X})
        testing.assert_close(run(model), expected.astype("float64"))


def test_last_block_that_is_not_full_is_dequantised_when_compiling() -> None:
    model = blocked("int8", size=24, axis=0, has_zero=True)
    tensors = {t.name: numpy_helper.to_array(t).astype("float64") for t in model.graph.initializer}
    scale, zero = (np.repeat(tensors[name], 24, 0)[:K] for name in "sz")
    exact = X.astype("float64") @ ((tensors["q"] - zero) * scale)
    testing.assert_close(run(model, is_stored=False), exact)


def n_bits(*, bits: int, size: int, zero: str, k: int = K) -> onnx.ModelProto:
    blocks = -(-k // size)
    packed = RNG.integers(0, 256, (N, blocks, size * bits // 8)).astype("uint8")
    tensors = [
        numpy_helper.from_array(packed, "q"),
        numpy_helper.from_array((RNG.random(N * blocks) / 2**bits).astype("float32"), "s"),
    ]
    if zero == "packed":
        bytes_ = -(-blocks * bits // 8)
        given = RNG.integers(0, 256, (N, bytes_)).astype("uint8")
        tensors.append(numpy_helper.from_array(given, "z"))
    attributes = {"K": k, "N": N, "bits": bits, "block_size": size}
    names = ["x", "q", "s", *(["z"] if zero else [])]
    node = helper.make_node("MatMulNBits", names, ["y"], domain="com.microsoft", **attributes)
    return model_of([node], tensors, opset=20)


@pytest.mark.parametrize(("bits", "zero"), [(4, ""), (4, "packed"), (8, ""), (8, "packed")])
def test_product_of_packed_bits_equals_onnx_runtime(bits: int, zero: str) -> None:
    model = n_bits(bits=bits, size=32, zero=zero)
    session = onnxruntime.InferenceSession(model.SerializeToString())
    (expected,) = session.run(None, {"x": X})
    testing.assert_close(run(model), expected.astype("float64"))

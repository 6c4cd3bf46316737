"""The single pieces of work that single_kernels.py times, each as an ONNX model.

Weights are constants, activations are inputs: as in a network. Sizes are those of
networks in use; what must be reached stands beside each class.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import onnx
from conv_shapes import BIAS_FLOPS, MOBILENETV2, RESNET50, ConvShape
from onnx import TensorProto, helper, numpy_helper

OPSET = 17
IR_VERSION = 8
SEED = 0
FLOAT_BYTES = 4
# As tvmfuse/patterns/operators.py counts them: erf as 10, and what GELU and a bias add.
ERF_FLOPS = 10
GELU_FLOPS = ERF_FLOPS + 4
# For peers/torch.py: the model in PyTorch is this function of the inputs, not compiled.
EAGER = "torch.eager"


@dataclass(frozen=True)
class Kernel:
    """One piece of work.

    Parameters
    ----------
    name : str
        Its file's name.
    group : str
        A key of ``kernels.GROUPS``.
    title : str
        Its sizes, as the table shows them.
    build : callable
        Makes the model.
    flops : int
        Floating-point operations of one run.
    n_bytes : int
        What crosses memory at least, in bytes: each operand once, and what is written
        twice, for a line is read before it is written. 0 where caches hold it all.
    """

    name: str
    group: str
    title: str
    build: Callable[[], onnx.ModelProto]
    flops: int = 0
    n_bytes: int = 0


def model(
    nodes: Sequence[onnx.NodeProto],
    inputs: Mapping[str, Sequence[int]],
    output: Sequence[int],
    *,
    weights: Mapping[str, Any] | None = None,
    metadata: Mapping[str, str] | None = None,
) -> onnx.ModelProto:
    """Return a float32 model whose only output is ``y``.

    Parameters
    ----------
    nodes : sequence of NodeProto
        In an order in which they can run.
    inputs : Mapping of str to shape
        The inputs.
    output : shape
        Shape of ``y``.
    weights : Mapping of str to array
        The constants.
    metadata : Mapping of str to str
        What else the file says.
    """
    describe = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes,
        "kernel",
        [describe(name, TensorProto.FLOAT, shape) for name, shape in inputs.items()],
        [describe("y", TensorProto.FLOAT, output)],
        [
            numpy_helper.from_array(np.asarray(array, np.float32), name)
            for name, array in (weights or {}).items()
        ],
    )
    made = helper.make_model(
        graph, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=IR_VERSION
    )
    helper.set_model_props(made, dict(metadata or {}))
    return made


def noise(*shape: int, inputs: int = 1) -> Any:
    """Return seeded weights for sums over ``inputs`` values, so that results are near 1."""
    rng = np.random.default_rng(SEED)
    return rng.standard_normal(shape, np.float32) / np.float32(math.sqrt(inputs))


def matmul_gelu(rows: int, depth: int, columns: int) -> onnx.ModelProto:
    """Return GELU(x W + b), written with Erf as exporters do."""
    node = helper.make_node
    nodes = [
        node("MatMul", ["x", "w"], ["product"]),
        node("Add", ["product", "b"], ["h"]),
        node("Div", ["h", "root_two"], ["scaled"]),
        node("Erf", ["scaled"], ["erf"]),
        node("Add", ["erf", "one"], ["gate"]),
        node("Mul", ["h", "gate"], ["twice"]),
        node("Mul", ["twice", "half"], ["y"]),
    ]
    weights = {
        "w": noise(depth, columns, inputs=depth),
        "b": noise(columns),
        "root_two": math.sqrt(2.0),
        "one": 1.0,
        "half": 0.5,
    }
    return model(nodes, {"x": (rows, depth)}, (rows, columns), weights=weights)


def gemv(depth: int, columns: int) -> onnx.ModelProto:
    """Return x W for one row."""
    node = helper.make_node("MatMul", ["x", "w"], ["y"])
    weights = {"w": noise(depth, columns, inputs=depth)}
    return model([node], {"x": (1, depth)}, (1, columns), weights=weights)


def conv(shape: ConvShape) -> onnx.ModelProto:
    """Return a convolution with its bias."""
    ins = shape.channels // shape.groups
    node = helper.make_node(
        "Conv",
        ["x", "w", "b"],
        ["y"],
        kernel_shape=[shape.kernel] * 2,
        strides=[shape.stride] * 2,
        pads=[shape.kernel // 2] * 4,
        group=shape.groups,
    )
    kernel = (shape.filters, ins, shape.kernel, shape.kernel)
    weights = {"w": noise(*kernel, inputs=math.prod(kernel[1:])), "b": noise(shape.filters)}
    x = (1, shape.channels, shape.size, shape.size)
    y = (1, shape.filters, shape.out, shape.out)
    return model([node], {"x": x}, y, weights=weights)


def attention(heads: int, length: int, width: int) -> onnx.ModelProto:
    """Return softmax(q kᵀ / √width) v."""
    node = helper.make_node
    nodes = [
        node("Transpose", ["k"], ["turned"], perm=[0, 1, 3, 2]),
        node("MatMul", ["q", "turned"], ["products"]),
        node("Mul", ["products", "scale"], ["scores"]),
        node("Softmax", ["scores"], ["weights"], axis=-1),
        node("MatMul", ["weights", "v"], ["y"]),
    ]
    shape = (1, heads, length, width)
    inputs = dict.fromkeys(("q", "k", "v"), shape)
    scale = {"scale": 1 / math.sqrt(width)}
    eager = {EAGER: "scaled_dot_product_attention"}
    return model(nodes, inputs, shape, weights=scale, metadata=eager)


def rowwise(operator: str, rows: int, columns: int) -> onnx.ModelProto:
    """Return softmax or layer-norm over the rows of a matrix."""
    weights = {}
    if operator == "LayerNormalization":
        weights = {"scale": 1 + noise(columns) / 4, "bias": noise(columns)}
    node = helper.make_node(operator, ["x", *weights], ["y"], axis=-1)
    return model([node], {"x": (rows, columns)}, (rows, columns), weights=weights)


def elementwise(operator: str, operands: int, shape: Sequence[int]) -> onnx.ModelProto:
    """Return an operator on tensors of equal shape."""
    names = [f"x{number}" for number in range(operands)]
    node = helper.make_node(operator, names, ["y"])
    return model([node], dict.fromkeys(names, shape), shape)


def all_kernels() -> tuple[Kernel, ...]:
    """Return every piece of work, in the order of the table."""
    return (*products(), *streams(), *convolutions(), *attentions())


def products() -> list[Kernel]:
    """Return matrix products with bias and GELU."""
    return [
        Kernel(
            f"matmul_{m}x{k}x{n}",
            "matmul",
            f"{m}×{k}×{n} + bias + GELU",
            lambda m=m, k=k, n=n: matmul_gelu(m, k, n),
            flops=m * n * (2 * k + BIAS_FLOPS + GELU_FLOPS),
        )
        for m, k, n in ((384, 768, 768), (384, 768, 3072), (512, 512, 512), (1024, 1024, 1024))
    ]


def streams() -> list[Kernel]:
    """Return what reads or writes tensors of 64 MiB once, so that memory is the limit."""
    side, rows, columns = 4096, 16384, 1024
    tensor = FLOAT_BYTES * side * side
    square = (side, side)
    return [
        Kernel(
            "gemv",
            "memory",
            f"GEMV 1×{side}×{side}",
            lambda: gemv(side, side),
            n_bytes=tensor,
        ),
        Kernel(
            "add",
            "memory",
            "elementwise: x + y",
            lambda: elementwise("Add", 2, square),
            n_bytes=4 * tensor,
        ),
        Kernel(
            "sigmoid",
            "memory",
            "elementwise: sigmoid",
            lambda: elementwise("Sigmoid", 1, square),
            n_bytes=3 * tensor,
        ),
        Kernel(
            "softmax",
            "memory",
            f"softmax {rows}×{columns}",
            lambda: rowwise("Softmax", rows, columns),
            n_bytes=3 * tensor,
        ),
        Kernel(
            "layer_norm",
            "memory",
            f"layer-norm {rows}×{columns}",
            lambda: rowwise("LayerNormalization", rows, columns),
            n_bytes=3 * tensor,
        ),
    ]


def convolutions() -> list[Kernel]:
    """Return the distinct convolutions of ResNet-50 and the depthwise ones of MobileNetV2."""
    shapes = {"conv": RESNET50, "depthwise": MOBILENETV2}
    return [
        Kernel(
            f"{group}{shape.kernel}x{shape.kernel}s{shape.stride}"
            f"_{shape.channels}_{shape.filters}_{shape.size}",
            "conv",
            shape.title,
            lambda shape=shape: conv(shape),
            flops=shape.flops,
        )
        for group, chosen in shapes.items()
        for shape in chosen
    ]


def attentions() -> list[Kernel]:
    """Return attention of BERT-base's heads."""
    heads, width = 12, 64
    return [
        Kernel(
            f"attention_{length}",
            "attention",
            f"{heads} heads × {width}, length {length}",
            lambda length=length: attention(heads, length, width),
            flops=4 * heads * length**2 * width,
        )
        for length in (512, 2048)
    ]

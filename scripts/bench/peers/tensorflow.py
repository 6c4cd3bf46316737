"""TensorFlow: the model's operators as TensorFlow's own, in one ``tf.function``.

TensorFlow reads no ONNX file. This is a twin of the model with the same weights:
pictures have their channels last, as TensorFlow's kernels for CPUs want them, and
weights are constants, so that Grappler folds and fuses them. It knows the operators
of the exported convolutional networks and transformers; another one is named.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import tensorflow as tf
from onnx import helper, numpy_helper

Array = np.ndarray[Any, Any]


def load(
    model: str, feeds: Mapping[str, Array], threads: int
) -> tuple[Callable[[], list[Array]], str]:
    """Build the twin; see ``tvmfuse/runtime/worker.py``."""
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    twin = Twin(onnx.load(model).graph)
    signature = {name: tf.TensorSpec(array.shape, array.dtype) for name, array in feeds.items()}
    run = tf.function(twin).get_concrete_function(**signature)
    inputs = {name: tf.constant(array) for name, array in feeds.items()}

    def call() -> list[Array]:
        return [y.numpy() for y in run(**inputs)]

    call()  # Grappler folds the weights
    return call, f"tensorflow {tf.__version__}"


class Twin:
    """A graph of ONNX as a function of TensorFlow.

    Parameters
    ----------
    graph : GraphProto
        Its weights become constants. The names in ``pictures`` are those of values
        that have their channels last here.
    """

    def __init__(self, graph: onnx.GraphProto) -> None:
        self.graph = graph
        self.weights = {w.name: numpy_helper.to_array(w) for w in graph.initializer}
        self.pictures: set[str] = set()
        unknown = sorted({node.op_type for node in graph.node} - OPERATORS.keys())
        if unknown:
            raise NotImplementedError(f"no twin of {', '.join(unknown)}")

    def __call__(self, **feeds: tf.Tensor) -> list[tf.Tensor]:
        """Return the outputs in order, their channels where ONNX has them."""
        values: dict[str, Any] = {**self.weights, **feeds, "": None}
        for node in self.graph.node:
            attributes = {a.name: helper.get_attribute_value(a) for a in node.attribute}
            operands = [values[name] for name in node.input]
            values[node.output[0]] = self.compute(node, operands, attributes)
        return [self.first(out.name, values[out.name]) for out in self.graph.output]

    def compute(
        self, node: onnx.NodeProto, operands: list[Any], attributes: dict[str, Any]
    ) -> tf.Tensor:
        """Return the output of a node, and note where its channels are."""
        if node.op_type in PICTURES:
            if node.input[0] not in self.pictures:
                operands[0] = tf.transpose(operands[0], (0, 2, 3, 1))
            self.pictures.add(node.output[0])
        elif node.op_type in ANYWHERE and self.are_pictures(node.input):
            self.pictures.add(node.output[0])
        else:
            operands = [self.first(name, x) for name, x in zip(node.input, operands, strict=True)]
        return OPERATORS[node.op_type](*operands, **attributes)

    def are_pictures(self, names: Sequence[str]) -> bool:
        """Whether all values but the scalars have their channels last."""
        scalars = {name for name, value in self.weights.items() if value.ndim == 0}
        tensors = set(names) - scalars - {""}
        return tensors <= self.pictures and bool(tensors)

    def first(self, name: str, value: tf.Tensor) -> tf.Tensor:
        """Return a value as ONNX has it: the channels of a picture before its rows."""
        return tf.transpose(value, (0, 3, 1, 2)) if name in self.pictures else value


def padding(pads: list[int] | None) -> list[list[int]]:
    """Return ONNX's padding of a picture as TensorFlow writes it, channels last."""
    top, left, bottom, right = pads or (0, 0, 0, 0)
    return [[0, 0], [top, bottom], [left, right], [0, 0]]


def conv(x: tf.Tensor, w: Array, b: Array | None = None, **given: Any) -> tf.Tensor:
    """Return a convolution, each channel by itself where there are as many groups."""
    groups, strides = given.get("group", 1), given.get("strides", [1, 1])
    pads, dilations = padding(given.get("pads")), given.get("dilations")
    if w.shape[1] == 1 and groups == x.shape[-1] == w.shape[0]:
        # Its depthwise kernel for CPUs dies of explicit padding.
        kernel, strides = w.transpose(2, 3, 0, 1), [1, *strides, 1]
        y = tf.nn.depthwise_conv2d(tf.pad(x, pads), kernel, strides, "VALID", dilations=dilations)
    else:
        kernel = w.transpose(2, 3, 1, 0)
        y = tf.nn.conv2d(x, kernel, strides, pads, dilations=dilations)
    return y if b is None else tf.nn.bias_add(y, b)


def clip(x: tf.Tensor, low: Any = None, high: Any = None) -> tf.Tensor:
    """Return x within bounds, where these are given."""
    x = x if low is None else tf.maximum(x, low)
    return x if high is None else tf.minimum(x, high)


def max_pool(x: tf.Tensor, **given: Any) -> tf.Tensor:
    """Return the largest value of each window."""
    size, strides = given["kernel_shape"], given.get("strides", [1, 1])
    if given.get("ceil_mode"):
        raise NotImplementedError("MaxPool with ceil_mode")
    return tf.nn.max_pool2d(x, size, strides, padding(given.get("pads")))


def gemm(a: tf.Tensor, b: Any, c: Any = 0.0, **given: Any) -> tf.Tensor:
    """Return alpha a b + beta c."""
    product = tf.matmul(
        a, b, transpose_a=bool(given.get("transA")), transpose_b=bool(given.get("transB"))
    )
    return given.get("alpha", 1.0) * product + given.get("beta", 1.0) * c


def layer_norm(x: tf.Tensor, scale: Any, bias: Any = 0.0, **given: Any) -> tf.Tensor:
    """Return x normalised over its axes from ``axis`` on."""
    axes = list(range(given.get("axis", -1) % len(x.shape), len(x.shape)))
    mean, variance = tf.nn.moments(x, axes, keepdims=True)
    return (x - mean) * tf.math.rsqrt(variance + given.get("epsilon", 1e-5)) * scale + bias


def gather_elements(x: tf.Tensor, index: tf.Tensor, axis: int = 0) -> tf.Tensor:
    """Return the values along ``axis`` that stand at ``index``."""
    grid = list(tf.meshgrid(*(tf.range(n, dtype=index.dtype) for n in index.shape), indexing="ij"))
    grid[axis] = index
    return tf.gather_nd(x, tf.stack(grid, -1))


def mean(x: tf.Tensor, axes: Array, keepdims: int = 1, **_: Any) -> tf.Tensor:
    """Return means over some axes."""
    return tf.reduce_mean(x, [int(axis) for axis in axes], keepdims=bool(keepdims))


PICTURES = ("Conv", "MaxPool")
ANYWHERE = ("Add", "Mul", "Relu", "Clip")  # the channels may stand anywhere
OPERATORS: Mapping[str, Callable[..., tf.Tensor]] = {
    "Add": tf.add,
    "And": tf.logical_and,
    "Cast": lambda x, to: tf.cast(x, helper.tensor_dtype_to_np_dtype(to)),
    "Clip": clip,
    "Conv": conv,
    "Div": tf.divide,
    "Erf": tf.math.erf,
    "Gather": lambda x, index, axis=0: tf.gather(x, index, axis=axis),
    "GatherElements": gather_elements,
    "GatherND": lambda x, index, batch_dims=0: tf.gather_nd(x, index, batch_dims=batch_dims),
    "Gemm": gemm,
    "IsNaN": tf.math.is_nan,
    "LayerNormalization": layer_norm,
    "MatMul": tf.matmul,
    "MaxPool": max_pool,
    "Mul": tf.multiply,
    "ReduceMean": mean,
    "Relu": tf.nn.relu,
    "Reshape": lambda x, shape, allowzero=0: tf.reshape(x, shape),
    "Softmax": lambda x, axis=-1: tf.nn.softmax(x, axis=axis),
    "Transpose": lambda x, perm: tf.transpose(x, perm),
    "Where": tf.where,
}

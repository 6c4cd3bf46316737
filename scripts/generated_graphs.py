"""Random networks in the manner of real ones, for measurements beyond the models at hand.

By turns they compute in float32, in float16, and in float32 with products of 8-bit integers,
and every network is there at two sizes.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable
from typing import Any

import numpy as np

from tvmfuse._tvm import relax

_INT8 = "int8"
_PRECISIONS = ("float32", "float32", "float16", _INT8)  # so many kinds of each before the next
_KINDS = 3
_STRUCTURES = _KINDS * len(_PRECISIONS)  # then the same ones at another size


def module(seed: int) -> Any:
    """Return a random network: by turns convolutions, attention, or loose operators.

    Parameters
    ----------
    seed : int
        Chooses everything: the kind, the element type, the blocks, their sizes and the
        weights. Every second dozen are of the blocks of the dozen before, at other sizes.

    Returns
    -------
    tvm.IRModule
        Its function ``main`` takes one tensor and returns one.
    """
    structure = seed - _STRUCTURES * (seed // _STRUCTURES % 2)
    chance = random.Random(structure)
    kind = (_Convolutions, _Transformer, _Loose)[seed % _KINDS]
    precision = _PRECISIONS[seed // _KINDS % len(_PRECISIONS)]
    shape = kind.shape(random.Random(seed))
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType(shape, "float32" if precision == _INT8 else precision))
    with builder.function("main", [x]):
        with builder.dataflow():
            network = kind(builder, chance, np.random.default_rng(seed), precision)
            value = x
            for _ in range(chance.randint(5, 9)):
                value = network.block(value)
            result = builder.emit_output(value)
        builder.emit_func_output(result)
    return builder.get()


class _Network:
    """Emits blocks, one after the other."""

    def __init__(
        self, builder: Any, chance: random.Random, rng: np.random.Generator, precision: str
    ) -> None:
        self._builder, self._chance, self._rng = builder, chance, rng
        self._is_quantised = precision == _INT8
        self._dtype = "float32" if self._is_quantised else precision

    def emit(self, expr: Any) -> Any:
        return self._builder.emit(expr)

    def weight(self, *shape: int) -> Any:
        """Return weights under which values keep their size."""
        fan_in = math.prod(shape[1:]) if len(shape) > 1 else 4
        values = self._rng.standard_normal(shape, dtype="float32") / math.sqrt(fan_in)
        return relax.const(values.astype(self._dtype))

    def number(self, value: float) -> Any:
        return relax.const(np.array(value, self._dtype))

    def factor(self, x: Any) -> Any:
        """Return an operand of a product: as it is, or by way of 8 bits (ONNX's QDQ form)."""
        if not self._is_quantised:
            return x
        scale, zero = relax.const(np.float32(0.03)), relax.const(np.array(128, "uint8"))
        stored = self.emit(relax.op.quantize(x, scale, zero, out_dtype="uint8"))
        return self.emit(relax.op.dequantize(stored, scale, zero))

    def factor_weight(self, *shape: int, axis: int) -> Any:
        """Return the weight of a product, in 8 bits with a scale for each output if need be."""
        if not self._is_quantised:
            return self.weight(*shape)
        values = self._rng.integers(-127, 128, shape, dtype="int8")
        size = 1 / (73 * math.sqrt(math.prod(shape) / shape[axis]))  # 73: of such values
        scale = np.full(shape[axis], size, "float32")
        operands = values, scale, np.zeros(shape[axis], "int8")
        return self.emit(relax.op.dequantize(*map(relax.const, operands), axis=axis))

    def any_of(self, *choices: Any) -> Any:
        return self._chance.choice(choices)

    def activation(self, x: Any) -> Any:
        """Apply one of the usual functions, or none."""
        op = relax.op
        functions: tuple[Callable[[], Any], ...] = (
            lambda: x,
            lambda: self.emit(op.nn.relu(x)),
            lambda: self.emit(op.multiply(x, self.emit(op.sigmoid(x)))),
            lambda: self.emit(op.clip(x, 0.0, 6.0)),
            lambda: self.emit(op.nn.gelu(x)),
            lambda: self.emit(op.tanh(x)),
        )
        return self.any_of(*functions)()


class _Convolutions(_Network):
    @staticmethod
    def shape(chance: random.Random) -> tuple[int, ...]:
        side = chance.choice((14, 28, 40, 56, 80, 112))
        most = 64 if side > 50 else 256
        channels = [c for c in (3, 8, 16, 24, 32, 48, 64, 96, 128, 192, 256) if c <= most]
        return 1, chance.choice(channels), side, side

    def block(self, x: Any) -> Any:
        blocks = (self._dense, self._dense, self._dense, self._depthwise, self._pool)
        return self.any_of(*blocks, self._gate, self._branches, self._residual)(x)

    def _conv(self, x: Any, out: int, size: int, stride: int = 1, groups: int = 1) -> Any:
        channels = int(x.ty.shape[1])
        weight = self.factor_weight(out, channels // groups, size, size, axis=0)
        image, padding = self.factor(x), size // 2
        y = self.emit(
            relax.op.nn.conv2d(image, weight, strides=stride, padding=padding, groups=groups)
        )
        return self.emit(relax.op.add(y, self.weight(1, out, 1, 1)))

    def _dense(self, x: Any) -> Any:
        stride = 2 if self._chance.random() < 0.3 and int(x.ty.shape[2]) > 14 else 1
        out = self.any_of(8, 16, 24, 40, 64, 96, 128, 160, 256)
        return self.activation(self._conv(x, out, self.any_of(1, 1, 3, 5), stride))

    def _depthwise(self, x: Any) -> Any:
        channels = int(x.ty.shape[1])
        stride = min(self.any_of(1, 1, 2), 2 if int(x.ty.shape[2]) > 14 else 1)
        return self.activation(self._conv(x, channels, self.any_of(3, 5), stride, channels))

    def _pool(self, x: Any) -> Any:
        pool = self.any_of(relax.op.nn.max_pool2d, relax.op.nn.avg_pool2d)
        stride = 2 if int(x.ty.shape[2]) > 14 else 1
        return self.emit(pool(x, (3, 3), strides=stride, padding=1))

    def _gate(self, x: Any) -> Any:
        channels = int(x.ty.shape[1])
        mean = self.emit(relax.op.mean(x, axis=[2, 3], keepdims=True))
        squeezed = self.emit(relax.op.nn.relu(self._conv(mean, max(4, channels // 4), 1)))
        gate = self.emit(relax.op.sigmoid(self._conv(squeezed, channels, 1)))
        return self.emit(relax.op.multiply(x, gate))

    def _branches(self, x: Any) -> Any:
        left = self.activation(self._conv(x, self.any_of(16, 32), 1))
        right = self.activation(self._conv(x, self.any_of(16, 32), 3))
        return self.emit(relax.op.concat([left, right], axis=1))

    def _residual(self, x: Any) -> Any:
        y = self._conv(self.activation(self._conv(x, 32, 1)), int(x.ty.shape[1]), 3)
        return self.activation(self.emit(relax.op.add(y, x)))


class _Transformer(_Network):
    @staticmethod
    def shape(chance: random.Random) -> tuple[int, ...]:
        width = chance.choice((64, 96, 128, 192, 256, 384, 512, 768))
        return 1, chance.choice((16, 48, 64, 100, 128, 196, 256)), width

    def block(self, x: Any) -> Any:
        return self.any_of(self._feed_forward, self._attention, self._norm, self._gated)(x)

    def _linear(self, x: Any, out: int) -> Any:
        weight = self.factor_weight(int(x.ty.shape[-1]), out, axis=1)
        y = self.emit(relax.op.matmul(self.factor(x), weight))
        return self.emit(relax.op.add(y, self.weight(out)))

    def _norm(self, x: Any) -> Any:
        width = int(x.ty.shape[-1])
        y = self.any_of(x, self.emit(relax.op.add(x, self._linear(x, width))))
        return self.emit(
            relax.op.nn.layer_norm(y, self.weight(width), self.weight(width), axes=[-1])
        )

    def _feed_forward(self, x: Any) -> Any:
        width = int(x.ty.shape[-1])
        inner = self._linear(x, width * self.any_of(1, 2, 4))
        return self.emit(relax.op.add(self._linear(self.activation(inner), width), x))

    def _gated(self, x: Any) -> Any:
        width = int(x.ty.shape[-1])
        inner = width * self.any_of(1, 2)
        gate = self.activation(self._linear(x, inner))
        return self._linear(self.emit(relax.op.multiply(gate, self._linear(x, inner))), width)

    def _attention(self, x: Any) -> Any:
        op = relax.op
        rows, width = int(x.ty.shape[1]), int(x.ty.shape[2])
        heads = self.any_of(1, 2, 4, 8, 12)
        heads = heads if width % heads == 0 else 8

        def split(axes: list[int]) -> Any:
            y = self.emit(op.reshape(self._linear(x, width), (1, rows, heads, width // heads)))
            return self.emit(op.permute_dims(y, axes))

        scores = self.emit(op.matmul(split([0, 2, 1, 3]), split([0, 2, 3, 1])))
        scale = self.number((width // heads) ** -0.5)
        weights = self.emit(op.nn.softmax(self.emit(op.multiply(scores, scale)), axis=-1))
        mixed = self.emit(op.matmul(weights, split([0, 2, 1, 3])))
        back = self.emit(op.permute_dims(mixed, [0, 2, 1, 3]))
        return self._linear(self.emit(op.reshape(back, (1, rows, width))), width)


class _Loose(_Network):
    """Operators without a network around them, of all sizes."""

    @staticmethod
    def shape(chance: random.Random) -> tuple[int, ...]:
        n_elements = 2 ** chance.randint(8, 21)
        columns = 2 ** chance.randint(4, min(11, n_elements.bit_length() - 2)) + chance.choice(
            (0, 3)
        )
        return max(1, n_elements // columns), columns

    def block(self, x: Any) -> Any:
        blocks = (self._chain, self._chain, self._reduce, self._softmax, self._moved, self._product)
        return self.any_of(*blocks)(x)

    def _chain(self, x: Any) -> Any:
        op = relax.op
        columns = int(x.ty.shape[-1])
        for _ in range(self._chance.randint(1, 5)):
            x = self.any_of(
                lambda x: self.emit(op.add(x, self.weight(columns))),
                lambda x: self.emit(op.multiply(x, self.number(0.9))),
                lambda x: self.emit(op.tanh(x)),
                lambda x: self.emit(op.sqrt(self.emit(op.abs(x)))),
                lambda x: self.emit(op.exp(self.emit(op.negative(self.emit(op.abs(x)))))),
                lambda x: self.emit(op.maximum(x, self.number(-1.0))),
                self.activation,
            )(x)
        return x

    def _reduce(self, x: Any) -> Any:
        reduce = self.any_of(relax.op.mean, relax.op.max, relax.op.sum)
        axis = self.any_of([-1], [-1], [0])
        return self.emit(relax.op.subtract(x, self.emit(reduce(x, axis=axis, keepdims=True))))

    def _softmax(self, x: Any) -> Any:
        return self.emit(relax.op.nn.softmax(x, axis=-1))

    def _moved(self, x: Any) -> Any:
        return self.emit(relax.op.permute_dims(x))

    def _product(self, x: Any) -> Any:
        rows, columns = (int(extent) for extent in x.ty.shape)
        if rows * columns > 1 << 18 or columns > 2100:
            return self._chain(x)
        out = self.any_of(16, 64, 100, 256)
        weight = self.factor_weight(columns, out, axis=1)
        y = self.emit(relax.op.matmul(self.factor(x), weight))
        return self.activation(self.emit(relax.op.add(y, self.weight(out))))

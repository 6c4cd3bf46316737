"""An integer convolution or product with what makes numbers, or small integers, of its sums.

Models with QuantizeLinear and DequantizeLinear around their convolutions and products come
here with sums of products of 8-bit integers: corrected by zero points, scaled, activated and
quantised again. None of these steps is stored.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Set
from dataclasses import replace
from typing import Any

import numpy as np

from tvmfuse._tvm import relax
from tvmfuse.patterns import operators, references
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.epilogue import prefixes

_ANCHORS = ("conv", "matmul")
_SMALL = ("int8", "uint8")
_CASTS = ("relax.astype", "relax.dequantize")
_SCALE = 2.0**-8
_STEP = 2.0**3


def _convolved(op: Any, x: Any, w: Any) -> Any:
    return op.nn.conv2d(x, w, padding=(1, 1, 1, 1), out_dtype="int32")


def _multiplied(op: Any, x: Any, w: Any) -> Any:
    return op.matmul(x, w, out_dtype="int32")


def _dequantised(op: Any, sums: Any, offset: Any) -> Any:
    numbers = op.astype(op.subtract(sums, offset), "float32")
    return op.multiply(numbers, relax.const(_SCALE, "float32"))


def _conv(op: Any, x: Any, w: Any, offset: Any) -> Any:
    return op.nn.relu(_dequantised(op, _convolved(op, x, w), offset))


def _conv_reference(x: Any, w: Any, offset: Any) -> Any:
    sums = references.conv2d(x.astype(float), w.astype(float), padding=(1, 1, 1, 1))
    return np.maximum((sums - offset) * _SCALE, 0)


def _conv_quantised(op: Any, x: Any, w: Any, offset: Any) -> Any:
    step, zero = relax.const(_STEP, "float32"), relax.const(3, "int8")
    return op.quantize(_conv(op, x, w, offset), step, zero, axis=1, out_dtype="int8")


def _conv_quantised_reference(x: Any, w: Any, offset: Any) -> Any:
    steps = np.rint(_conv_reference(x, w, offset) / _STEP) + 3
    return np.clip(steps, -128, 127).astype("int8")


def _product(op: Any, x: Any, w: Any, offset: Any) -> Any:
    return _dequantised(op, _multiplied(op, x, w), offset)


def _product_reference(x: Any, w: Any, offset: Any) -> Any:
    return (x.astype(float) @ w.astype(float) - offset) * _SCALE


def _sums_too(op: Any, x: Any, w: Any, offset: Any) -> Any:
    sums = _multiplied(op, x, w)
    return _dequantised(op, sums, offset), sums


def _of_integers(op: Any, x: Any, w: Any, offset: Any) -> Any:
    return op.subtract(_multiplied(op, x, w), offset)


def _pooled(op: Any, x: Any) -> Any:
    return op.multiply(op.astype(op.nn.max_pool2d(x), "float32"), relax.const(_SCALE, "float32"))


def _of_numbers(op: Any, x: Any, w: Any, y: Any) -> Any:
    return op.astype(op.multiply(op.matmul(x, w), y), "float64")


_PRODUCT: Mapping[str, Operand] = {
    "x": Operand((3, 5, 16), dtype="uint8", bounds=(0, 200)),
    "w": Operand((16, 12), is_constant=True, dtype="int8", bounds=(-100, 100)),
    "offset": Operand((12,), is_constant=True, dtype="int32", bounds=(-500, 500)),
}
_IMAGE: Mapping[str, Operand] = {
    "x": Operand((2, 6, 7, 9), dtype="uint8", bounds=(0, 200)),
    "w": Operand((8, 6, 3, 3), is_constant=True, dtype="int8", bounds=(-100, 100)),
    "offset": Operand((8, 1, 1), is_constant=True, dtype="int32", bounds=(-500, 500)),
}
_WIDE = Operand((16, 12), is_constant=True, dtype="int32")
_ROW = {"x": Operand((3, 16)), "w": Operand((16, 12), is_constant=True), "y": Operand((12,))}


class Quantised(Generator):
    """Integer (QDQ) convolution or product, and what dequantises, activates, quantises its sums."""

    name = "quantised"
    cases = (
        Case("a convolution to numbers", _IMAGE, graph=_conv, reference=_conv_reference),
        Case(
            "a convolution to integers",
            _IMAGE,
            graph=_conv_quantised,
            reference=_conv_quantised_reference,
        ),
        Case("a product to numbers", _PRODUCT, graph=_product, reference=_product_reference),
    )
    near_misses = (
        Case("the sums are a result, too", _PRODUCT, graph=_sums_too),
        Case("the sums stay integers", _PRODUCT, graph=_of_integers),
        Case(
            "the integers are pooled",
            {"x": _IMAGE["x"]},
            graph=_pooled,
        ),
        Case("numbers are multiplied", _ROW, graph=_of_numbers),
        Case(
            "the sums are as wide as what is read",
            {**_PRODUCT, "x": replace(_PRODUCT["x"], dtype="int32"), "w": _WIDE},
            graph=_product,
        ),
    )

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each integer anchor with ever more of what follows, once that is no integer."""
        for anchor, kind in enumerate(flow.kinds):
            if kind not in _ANCHORS or not flow.groupable[anchor]:
                continue
            call = flow.value(anchor)
            if not all(operators.dtype(arg) in _SMALL for arg in operators.tensors(call)):
                continue
            for members in prefixes(flow, anchor):
                if any(flow.operators[member] in _CASTS for member in members):
                    yield Match(members, operators.family(call))

"""A normalisation in the prologue of the products that alone read it.

Norm and Q, K and V; norm and a gated feed-forward; norm and one linear layer. Each task
normalises the rows that it multiplies, so the normalised tensor is never stored. That is
numerically the norm itself: nothing is folded through the product, so nothing cancels.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import replace
from typing import Any

from tvmfuse._tvm import tvm
from tvmfuse.patterns import operators, references
from tvmfuse.patterns.activations import ACTIVATIONS
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.epilogue import prefixes
from tvmfuse.patterns.siblings import matches

_EPSILON = 1e-5


def _linear(op: Any, x: Any, gamma: Any, beta: Any, w: Any, b: Any) -> Any:
    normal = op.nn.layer_norm(x, gamma, beta, axes=[-1], epsilon=_EPSILON)
    return op.nn.gelu(op.add(op.matmul(normal, w), b))


def _linear_reference(x: Any, gamma: Any, beta: Any, w: Any, b: Any) -> Any:
    normal = references.layer_norm(x, gamma, beta)
    return ACTIVATIONS["gelu"].reference(normal @ w + b, None)


def _gated(op: Any, x: Any, gamma: Any, w: Any, v: Any) -> Any:
    normal = op.nn.rms_norm(x, gamma, axes=[-1], epsilon=_EPSILON)
    return op.multiply(op.nn.silu(op.matmul(normal, w)), op.matmul(normal, v))


def _gated_reference(x: Any, gamma: Any, w: Any, v: Any) -> Any:
    normal = references.rms_norm(x, gamma)
    return ACTIVATIONS["silu"].reference(normal @ w, None) * (normal @ v)


def _projections(op: Any, x: Any, gamma: Any, w: Any, v: Any, k: Any, b: Any) -> Any:
    normal = op.nn.rms_norm(x, gamma, axes=[-1], epsilon=_EPSILON)
    return op.add(op.matmul(normal, w), b), op.matmul(normal, k), op.matmul(normal, v)


def _projections_reference(x: Any, gamma: Any, w: Any, v: Any, k: Any, b: Any) -> Any:
    normal = references.rms_norm(x, gamma)
    return normal @ w + b, normal @ k, normal @ v


def _read_elsewhere(op: Any, x: Any, gamma: Any, w: Any) -> Any:
    normal = op.nn.rms_norm(x, gamma, axes=[-1], epsilon=_EPSILON)
    return op.matmul(normal, w), op.exp(normal)


def _returned(op: Any, x: Any, gamma: Any, w: Any) -> Any:
    normal = op.nn.rms_norm(x, gamma, axes=[-1], epsilon=_EPSILON)
    return op.matmul(normal, w), normal


def _multiplied(op: Any, x: Any, gamma: Any, w: Any, column: Any) -> Any:
    normal = op.nn.rms_norm(x, gamma, axes=[-1], epsilon=_EPSILON)
    return op.multiply(op.matmul(normal, w), op.matmul(normal, column))


def _uncentred(op: Any, x: Any, gamma: Any, w: Any) -> Any:
    normal = op.nn.layer_norm(x, gamma, gamma, axes=[-1], epsilon=_EPSILON, center=False)
    return op.matmul(normal, w)


def _plain(op: Any, x: Any, gamma: Any, w: Any) -> Any:
    return op.matmul(op.nn.rms_norm(x, gamma, axes=[-1], epsilon=_EPSILON), w)


def _mixed(op: Any, x: Any, gamma: Any, w: Any) -> Any:
    normal = op.nn.rms_norm(x, gamma, axes=[-1], epsilon=_EPSILON)
    return op.matmul(normal, w, out_dtype="float32")


def _convolved(op: Any, x: Any, gamma: Any, w: Any) -> Any:
    normal = op.nn.rms_norm(x, gamma, axes=[-1], epsilon=_EPSILON)
    return op.nn.conv1d(normal, w)


def _over_rows(op: Any, x: Any, gamma: Any, w: Any) -> Any:
    return op.matmul(op.nn.rms_norm(x, gamma, axes=[1], epsilon=_EPSILON), w)


def _as_weight(op: Any, x: Any, gamma: Any, w: Any) -> Any:
    return op.matmul(w, op.nn.rms_norm(x, gamma, axes=[-1], epsilon=_EPSILON))


def _cases() -> tuple[Case, ...]:
    weight = Operand((16, 20), is_constant=True, spread=0.25)
    parameter = Operand((16,), is_constant=True)
    operands = {
        "x": Operand((2, 5, 16)),
        "gamma": parameter,
        "beta": parameter,
        "w": weight,
        "v": weight,
        "k": Operand((16, 8), is_constant=True, spread=0.25),
        "b": Operand((20,), is_constant=True),
    }
    return (
        Case(
            "layer norm and one linear layer",
            operands,
            graph=_linear,
            reference=_linear_reference,
        ),
        Case("RMS norm and SwiGLU", operands, graph=_gated, reference=_gated_reference),
        Case(
            "RMS norm and Q, K and V",
            operands,
            graph=_projections,
            reference=_projections_reference,
        ),
    )


def _near_misses() -> tuple[Case, ...]:
    square = Operand((16, 16), is_constant=True)
    operands = {"x": Operand((2, 16, 16)), "gamma": Operand((16,), is_constant=True), "w": square}
    half, half_row = (replace(operands[name], dtype="float16") for name in ("w", "gamma"))
    return (
        Case("the normalised rows are read elsewhere", operands, graph=_read_elsewhere),
        Case("the normalised rows are a result, too", operands, graph=_returned),
        Case("the norm runs over another axis", operands, graph=_over_rows),
        Case("the norm adds no shift", operands, graph=_uncentred),
        Case("the weight is no constant", {**operands, "w": Operand((16, 16))}, graph=_plain),
        Case(
            "each batch has a weight of its own",
            {**operands, "w": Operand((2, 16, 16), is_constant=True)},
            graph=_plain,
        ),
        Case(
            "a convolution reads the normalised rows",
            {**operands, "w": Operand((16, 16, 1), is_constant=True)},
            graph=_convolved,
        ),
        Case("the weight is float16", {**operands, "w": half}, graph=_mixed),
        Case(
            "the rows are float16",
            {**operands, "x": replace(operands["x"], dtype="float16"), "gamma": half_row},
            graph=_mixed,
        ),
        Case(
            "products of different widths are multiplied",
            {**operands, "column": Operand((16, 1), is_constant=True)},
            graph=_multiplied,
        ),
        Case("the normalised rows are the right operand", operands, graph=_as_weight),
    )


class NormLinear(Generator):
    """A norm of rows with every product that reads it, and their epilogues."""

    name = "norm_linear"
    is_multi_output = True
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each norm with its products, and with ever more of what follows them."""
        for position, operator in enumerate(flow.operators):
            if operator not in operators.NORMS or not flow.groupable[position]:
                continue
            products = flow.users[position]
            if not products or position in flow.escaping or not _is_of_rows(flow, position):
                continue
            if all(_is_by_matrix(flow, product) for product in products):
                yield from _with_products(flow, position, products)


def _with_products(flow: Dataflow, norm: int, products: tuple[int, ...]) -> Iterator[Match]:
    shapes = {operators.shape(flow.value(product).args[1]) for product in products}
    if len(products) == 1:
        yield Match((norm, *products), "matmul")
    if len(shapes) == 1:
        for members in prefixes(flow, *products):
            yield Match(tuple(sorted((norm, *members))), "matmul")
    for match in matches(flow, products):
        yield Match(tuple(sorted((norm, *match.bindings))), match.family)


def _is_of_rows(flow: Dataflow, norm: int) -> bool:
    """Whether a norm runs over the last axis of a float32 tensor of known shape."""
    call = flow.value(norm)
    if not all(getattr(call.attrs, name, True) for name in ("center", "scale")):
        return False
    return operators.is_norm_of_rows(call) and operators.dtype(call) == "float32"


def _is_by_matrix(flow: Dataflow, product: int) -> bool:
    """Whether a product multiplies what it reads by a constant matrix."""
    if flow.operators[product] != "relax.matmul" or not flow.groupable[product]:
        return False
    weight = flow.value(product).args[1]
    is_matrix = isinstance(weight, tvm.ir.GenericConst) and len(weight.value.shape) == 2
    return is_matrix and operators.dtype(weight) == "float32"

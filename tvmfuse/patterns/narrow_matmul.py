"""A product by a weight of small integers in groups, which it dequantises itself.

Large language models store their weights in 4 bits, with a scale and a zero point for each
group of 16 to 256 of them. Stored so, a weight is an eighth of its size in float32, and
so is what a product of few rows has to read.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import tvm
from tvmfuse.patterns import operators
from tvmfuse.patterns.activations import ACTIVATIONS
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.epilogue import prefixes

CHAIN = ("relax.reshape", "relax.add", "relax.multiply", "relax.astype")
"""Operators that make the weight, the last one first: see :func:`stored_weight`."""

OPTIONAL = "relax.add"
"""Left out where nothing is added."""

FOUR_BITS = 15
_RANK = 3  # groups, group, columns


@dataclass(frozen=True, eq=False)
class StoredWeight:
    """A weight ``scale * values + offset``.

    Parameters
    ----------
    members : tuple of int
        The operators that make it, ascending.
    values : relax constant
        (groups, group, n): int8, or uint8 below 16, of which two share a byte.
    scale : relax constant
        (groups, 1, n), float32.
    offset : relax constant or None
        Likewise; None where it is zero.
    """

    members: tuple[int, ...]
    values: Any
    scale: Any
    offset: Any


def stored_weight(flow: Dataflow, expr: Any) -> StoredWeight | None:
    """Return a weight that is made of small integers for one reader, in canonical form."""
    members: list[int] = []
    parts: dict[str, Any] = {}
    for operator in CHAIN:
        position = flow.position.get(expr)
        found = "" if position is None else flow.operators[position]
        if found != operator and operator == OPTIONAL:
            continue
        if position is None or found != operator:
            return None
        if position in flow.escaping or len(flow.users[position]) != 1:
            return None
        call = flow.value(position)
        members.append(position)
        expr = call.args[0]
        if operator in ("relax.add", "relax.multiply"):
            parts[operator] = call.args[1]
    if not all(isinstance(part, tvm.ir.GenericConst) for part in (expr, *parts.values())):
        return None
    shape = operators.shape(expr) or ()
    if len(shape) != _RANK or not _is_small(expr, shape[1]):
        return None
    if any(operators.shape(part) != (shape[0], 1, shape[2]) for part in parts.values()):
        return None
    offset = parts.get("relax.add")
    return StoredWeight(tuple(sorted(members)), expr, parts["relax.multiply"], offset)


def bits_of(dtype: str) -> int:
    """Return the bits of a stored integer: 4 for ``uint8``, 8 for ``int8``."""
    return 4 if dtype == "uint8" else 8


def _is_small(constant: Any, group: int | str) -> bool:
    """Whether integers are of 8 bits, or of 4 that come in pairs."""
    if operators.dtype(constant) == "int8":
        return True
    if operators.dtype(constant) != "uint8" or not isinstance(group, int) or group % 2:
        return False
    return int(constant.value.numpy().max(initial=0)) <= FOUR_BITS


def _product(op: Any, x: Any, q: Any, scale: Any, offset: Any) -> Any:
    groups, group, n = (int(d) for d in q.ty.shape)
    wide = op.multiply(op.astype(q, str(x.ty.dtype)), scale)
    return op.matmul(x, op.reshape(op.add(wide, offset), (groups * group, n)))


def _scaled(op: Any, x: Any, q: Any, scale: Any) -> Any:
    groups, group, n = (int(d) for d in q.ty.shape)
    wide = op.multiply(op.astype(q, str(x.ty.dtype)), scale)
    return op.matmul(x, op.reshape(wide, (groups * group, n)))


def _scaled_reference(x: Any, q: Any, scale: Any) -> Any:
    return _reference(x, q, scale, 0)


def _biased(op: Any, x: Any, q: Any, scale: Any, offset: Any, bias: Any) -> Any:
    return op.nn.gelu(op.add(_product(op, x, q, scale, offset), bias))


def _reference(x: Any, q: Any, scale: Any, offset: Any) -> Any:
    return x @ (q * scale + offset).reshape(-1, q.shape[2])


def _biased_reference(x: Any, q: Any, scale: Any, offset: Any, bias: Any) -> Any:
    y = _reference(x, q, scale, offset) + bias
    return ACTIVATIONS["gelu"].reference(y, None)


def _weight_read_elsewhere(op: Any, x: Any, q: Any, scale: Any, offset: Any) -> Any:
    wide = op.add(op.multiply(op.astype(q, "float32"), scale), offset)
    weight = op.reshape(wide, (32, 24))
    return op.matmul(x, weight), op.exp(weight)


def _as_rows(op: Any, x: Any, q: Any, scale: Any, offset: Any) -> Any:
    wide = op.add(op.multiply(op.astype(q, "float32"), scale), offset)
    return op.matmul(op.reshape(wide, (32, 24)), x)


def _shifted(op: Any, x: Any, q: Any, scale: Any, offset: Any) -> Any:
    wide = op.add(op.subtract(op.astype(q, "float32"), scale), offset)
    return op.matmul(x, op.reshape(wide, (32, 24)))


def _weight_too(op: Any, x: Any, q: Any, scale: Any, offset: Any) -> Any:
    wide = op.add(op.multiply(op.astype(q, "float32"), scale), offset)
    weight = op.reshape(wide, (32, 24))
    return op.matmul(x, weight), weight


def _of_a_matrix(op: Any, x: Any, q: Any, scale: Any) -> Any:
    wide = op.multiply(op.astype(q, "float32"), scale)
    return op.matmul(x, op.reshape(wide, (48, 24)))


def _cases() -> tuple[Case, ...]:
    operands = {
        "x": Operand((2, 1, 32)),
        "q": Operand((2, 16, 24), is_constant=True, dtype="uint8", bounds=(0, 16)),
        "scale": Operand((2, 1, 24), is_constant=True, spread=0.03),
        "offset": Operand((2, 1, 24), is_constant=True, spread=0.1),
        "bias": Operand((24,), is_constant=True),
    }
    many = {**operands, "x": Operand((2, 9, 32))}
    wide = {**operands, "q": Operand((2, 16, 24), is_constant=True, dtype="int8")}
    plain = {key: value for key, value in wide.items() if key != "offset"}
    return (
        Case("8 bits without offset", plain, graph=_scaled, reference=_scaled_reference),
        Case("4 bits, few rows", operands, graph=_product, reference=_reference),
        Case("4 bits, many rows", many, graph=_product, reference=_reference),
        Case("8 bits", wide, graph=_product, reference=_reference),
        Case("with bias and gelu", operands, graph=_biased, reference=_biased_reference),
    )


def _near_misses() -> tuple[Case, ...]:
    _, plain, many, *_ = _cases()
    operands = {**many.operands, "x": Operand((9, 32))}
    given = dict(plain.operands)
    return (
        Case("the weight is read elsewhere", operands, graph=_weight_read_elsewhere),
        Case("the weight is the left operand", {**operands, "x": Operand((24, 5))}, graph=_as_rows),
        Case(
            "the integers come in at run time",
            {**given, "q": Operand((2, 16, 24), dtype="uint8", bounds=(0, 16))},
            graph=_product,
        ),
        Case(
            "the integers are too large for 4 bits",
            {**given, "q": Operand((2, 16, 24), is_constant=True, dtype="uint8", bounds=(0, 17))},
            graph=_product,
        ),
        Case(
            "a group of 4 bits is odd",
            {
                "x": Operand((9, 30)),
                "q": Operand((2, 15, 24), is_constant=True, dtype="uint8", bounds=(0, 16)),
                "scale": given["scale"],
            },
            graph=_scaled,
        ),
        Case(
            "the integers are no groups",
            {
                "x": Operand((9, 48)),
                "q": Operand((1, 2, 24, 1), is_constant=True, dtype="int8"),
                "scale": Operand((1, 1, 24), is_constant=True),
            },
            graph=_of_a_matrix,
        ),
        Case("the weight is a result, too", operands, graph=_weight_too),
        Case("the scale is taken off", operands, graph=_shifted),
        Case(
            "the integers have 32 bits",
            {**given, "q": Operand((2, 16, 24), is_constant=True, dtype="int32")},
            graph=_product,
        ),
        Case(
            "every row has a scale",
            {**given, "scale": Operand((2, 16, 24), is_constant=True)},
            graph=_product,
        ),
        Case(
            "the offset is one number",
            {**given, "offset": Operand((), is_constant=True)},
            graph=_product,
        ),
    )


class NarrowMatmul(Generator):
    """A product with what dequantises its weight, and its epilogue."""

    name = "narrow_matmul"
    cases = _cases()
    near_misses = _near_misses()

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield each product with its weight, and with ever more of what follows."""
        for position, operator in enumerate(flow.operators):
            if operator != "relax.matmul" or not flow.groupable[position]:
                continue
            weight = stored_weight(flow, flow.value(position).args[1])
            if weight is None:
                continue
            yield Match(tuple(sorted((*weight.members, position))), "matmul")
            for members in prefixes(flow, position):
                yield Match(tuple(sorted((*weight.members, *members))), "matmul")

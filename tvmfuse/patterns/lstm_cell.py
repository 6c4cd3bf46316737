"""One step of an LSTM that is written out: the product with the state, the gates, the new cell.

``nn.LSTMCell``, and loops over one, become four slices or parts of a sum, which are activated
and combined; :func:`read` takes that apart into what the recurrent kernel needs. The gates may
stand in any order.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from typing import Any

from tvmfuse._tvm import relax
from tvmfuse.patterns import operators
from tvmfuse.patterns.base import Generator, Match
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.lstm_examples import CASES, NEAR_MISSES

_GATES = 4


@dataclass(frozen=True)
class Cell:
    """One step of an LSTM.

    Parameters
    ----------
    members : tuple of int
        Positions of its operators, ascending.
    hidden, cell : int
        Positions of the new state and the new cell.
    state, cell_before, weight : relax.Expr
        What is multiplied, what is forgotten, and the state's weights.
    terms : tuple of relax.Expr
        What is added to the product.
    order : tuple of int
        Which quarter of the columns is the input, output, forget and cell gate.
    """

    members: tuple[int, ...]
    hidden: int
    cell: int
    state: Any
    cell_before: Any
    weight: Any
    terms: tuple[Any, ...]
    order: tuple[int, ...]


def read(flow: Dataflow, position: int) -> Cell | None:
    """Take the step apart whose new state is at ``position``; None where it is none."""
    reader = _Reader(flow)
    try:
        return reader.cell(position)
    except _NoCell:
        return None


class _NoCell(Exception):  # noqa: N818 - ends the reading of what is something else
    pass


class _Reader:
    def __init__(self, flow: Dataflow) -> None:
        self._flow = flow
        self._members: set[int] = set()
        self._sums: set[int] = set()

    def cell(self, hidden: int) -> Cell:
        output, squashed = self._operands(hidden, "multiply", ("sigmoid", "tanh"))
        new = self._at(self._flow.value(squashed).args[0], "add")
        kept, added = self._kept_and_added(new)
        i, g = self._operands(added, "multiply", ("sigmoid", "tanh"))
        forget, before = self._forgotten(kept)
        order = tuple(self._quarter(gate) for gate in (i, output, forget, g))
        if sorted(order) != list(range(_GATES)) or len(self._sums) != 1:
            raise _NoCell
        product, terms = self._addends(self._sums.pop())
        state, weight = self._flow.value(product).args
        return Cell(tuple(sorted(self._members)), hidden, new, state, before, weight, terms, order)

    def _operands(self, position: int, operator: str, kinds: Sequence[str]) -> list[int]:
        """Return where the two operands of a binding are computed, by their operators."""
        self._require(position, operator)
        places = [self._position(arg) for arg in self._flow.value(position).args]
        for found in (places, places[::-1]):
            if [self._kind(place) for place in found] == list(kinds):
                self._members.update((position, *found))
                return found
        raise _NoCell

    def _kept_and_added(self, new: int) -> tuple[int, int]:
        """Return the two products whose sum is the new cell."""
        places = [self._position(arg) for arg in self._flow.value(new).args]
        for kept, added in (places, places[::-1]):
            kinds = {self._kind(self._position(arg)) for arg in self._args(added)}
            if kinds == {"sigmoid", "tanh"}:
                return kept, added
        raise _NoCell

    def _forgotten(self, kept: int) -> tuple[int, Any]:
        """Return the forget gate and the cell before."""
        self._require(kept, "multiply")
        for gate, before in (self._args(kept), self._args(kept)[::-1]):
            place = self._position(gate)
            if self._kind(place) == "sigmoid" and self._is_part(self._flow.value(place).args[0]):
                self._members.update((kept, place))
                return place, before
        raise _NoCell

    def _is_part(self, value: Any) -> bool:
        return self._kind(self._position(value)) in ("strided_slice", "part")

    def _quarter(self, gate: int) -> int:
        """Return which quarter of a sum a gate activates, and remember the sum."""
        part = self._position(self._flow.value(gate).args[0])
        value = self._flow.value(part)
        if self._kind(part) == "part":
            split = self._at(value.tuple_value, "split")
            call = self._flow.value(split)
            sections = len(call.ty.fields)
            is_last = int(call.attrs.axis) % call.args[0].ty.ndim == call.args[0].ty.ndim - 1
            if sections != _GATES or not is_last:
                raise _NoCell
            self._members.update((part, split))
            self._sums.add(self._position(call.args[0]))
            return int(value.index)
        self._require(part, "strided_slice")
        self._members.add(part)
        self._sums.add(self._position(value.args[0]))
        return _quarter_of_slice(value)

    def _addends(self, total: int) -> tuple[int, tuple[Any, ...]]:
        """Return the product with a constant among what is added up, and the rest."""
        flow, terms, products = self._flow, [], []
        waiting = [total]
        while waiting:
            position = waiting.pop()
            self._members.add(position)
            if flow.operators[position] != "relax.add":
                products.append(position)
                continue
            for arg in flow.value(position).args:
                inner = flow.private_source(position, arg)
                if inner is not None and self._is_summed(inner, products):
                    waiting.append(inner)
                else:
                    terms.append(arg)
        if len(products) != 1 or not self._is_product(products[0]):
            raise _NoCell
        return products[0], tuple(terms)

    def _is_summed(self, position: int, products: Sequence[int]) -> bool:
        operator = self._flow.operators[position]
        return operator == "relax.add" or (not products and self._is_product(position))

    def _is_product(self, position: int) -> bool:
        if self._flow.operators[position] != "relax.matmul":
            return False
        state, weight = (operators.shape(arg) for arg in self._flow.value(position).args)
        return bool(
            state and weight and len(state) == len(weight) == 2 and weight[1] == 4 * state[1]
        )

    def _args(self, position: int) -> list[Any]:
        if self._kind(position) != "multiply":
            raise _NoCell
        return list(self._flow.value(position).args)

    def _at(self, value: Any, operator: str) -> int:
        position = self._position(value)
        self._require(position, operator)
        self._members.add(position)
        return position

    def _require(self, position: int, operator: str) -> None:
        if self._kind(position) != operator:
            raise _NoCell

    def _position(self, value: Any) -> int:
        return self._flow.position.get(value, -1)

    def _kind(self, position: int) -> str:
        if position < 0:
            return ""
        if isinstance(self._flow.value(position), relax.TupleGetItem):
            return "part"
        return self._flow.operators[position].removeprefix("relax.")


def _quarter_of_slice(call: Any) -> int:
    shape = operators.shape(call.args[0])
    axes, begins, ends = ([int(v) for v in arg.fields] for arg in call.args[1:4])
    steps = [int(v) for v in call.args[4].fields] if len(call.args) > 4 else [1]
    if not shape or len(axes) != 1 or axes[0] % len(shape) != len(shape) - 1 or steps != [1]:
        raise _NoCell
    columns = shape[-1]
    if not isinstance(columns, int) or columns % _GATES:
        raise _NoCell
    begin, end, _ = slice(begins[0], ends[0]).indices(columns)
    if begin % (columns // _GATES) or end - begin != columns // _GATES:
        raise _NoCell
    return begin // (columns // _GATES)


class LstmCell(Generator):
    """The product with the state, the gates and the new state of an LSTM's step."""

    name = "lstm_cell"
    is_multi_output = True
    cases = CASES
    near_misses = NEAR_MISSES

    def find(self, flow: Dataflow, taken: Set[int]) -> Iterator[Match]:
        """Yield the step around every product of a sigmoid and a tanh."""
        for position in range(len(flow.bindings)):
            if flow.groupable[position]:
                found = read(flow, position)
                if found is not None and _is_float32(flow, found):
                    yield Match(found.members, "recurrent")


def _is_float32(flow: Dataflow, found: Cell) -> bool:
    tensors = [found.state, found.cell_before, found.weight, *found.terms]
    return all(operators.dtype(tensor) == "float32" for tensor in tensors) and all(
        isinstance(d, int) for d in operators.shape(flow.value(found.hidden)) or ("?",)
    )

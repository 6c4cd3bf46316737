"""Write ``Loop`` and ``Scan`` out, iteration after iteration, where their number is known.

A graph without control flow can be fused as a whole. A loop that may end early runs to its
last iteration all the same, and from the end on its values stay as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
import onnx_ir as ir

from tvmfuse.errors import ModelError

LARGEST_LOOP = 10_000
"""Nodes of all iterations of one loop together."""

Value = ir.Value | None


def unroll_loops(graph: ir.Graph, name: str) -> bool:
    """Replace every ``Loop`` and ``Scan`` of ``graph`` by its iterations; tell if there was one.

    Loops inside of loops come to the surface, and are left for the next call.

    Parameters
    ----------
    graph : onnx_ir.Graph
        Changed in place. Constants have been folded and shapes inferred in it.
    name : str
        What the model is called in messages.

    Raises
    ------
    ModelError
        The number of iterations is not known, or there are too many.
    """
    kinds: dict[str, type[_Loop] | type[_Scan]] = {"Loop": _Loop, "Scan": _Scan}
    found = [n for n in graph if n.op_type in kinds and n.domain in ("", "ai.onnx")]
    for node in found:
        loop = kinds[node.op_type](node, name)
        ir.convenience.replace_all_uses_with(
            node.outputs, loop.results(), replace_graph_outputs=True
        )
        graph.insert_before(node, loop.nodes)
        for value in loop.constants:
            graph.register_initializer(value)
        graph.remove(node, safe=True)
    return bool(found)


@dataclass
class _Unrolled:
    """The nodes that take the place of one loop."""

    node: ir.Node
    model: str
    nodes: list[ir.Node] = field(default_factory=list)
    constants: list[ir.Value] = field(default_factory=list)

    @property
    def label(self) -> str:
        """What a person calls the loop."""
        return self.node.name or str(self.node.outputs[0].name)

    @property
    def body(self) -> ir.Graph:
        """The graph of one iteration."""
        return self.node.attributes["body"].as_graph()

    def iterate(self, step: int, inputs: Sequence[ir.Value]) -> list[ir.Value]:
        """Append a copy of the body that reads ``inputs``; return its results."""
        body = self.body.clone(allow_outer_scope_values=True)
        given = dict(zip(body.inputs, inputs, strict=True))
        results = [given.get(value, value) for value in body.outputs]
        for inner, value in given.items():
            ir.convenience.replace_all_uses_with(inner, value)
        body.outputs.clear()
        for key in list(body.initializers):
            value = body.initializers.pop(key)
            value.name = f"{self.label}/{step}/{key}"
            self.constants.append(value)
        nodes = list(body)
        body.remove(nodes)
        for node in nodes:
            node.name = f"{self.label}/{step}/{node.name or node.op_type}"
            for output in node.outputs:
                output.name = f"{self.label}/{step}/{output.name}" if output.name else ""
                output.shape = None  # what was inferred for any iteration may not be of this one
        self.nodes += nodes
        return results

    def add(self, op: str, inputs: Sequence[Value], **attributes: int) -> ir.Value:
        """Append a node with one result."""
        node = ir.node(op, inputs, attributes=attributes)
        self.nodes.append(node)
        result = node.outputs[0]
        result.name = f"{self.label}/{op}/{len(self.nodes)}"
        return result

    def constant(self, array: np.ndarray) -> ir.Value:
        """Return a constant."""
        tensor = ir.tensor(array)
        name = f"{self.label}/constant/{len(self.constants)}"
        value = ir.Value(
            name=name,
            type=ir.TensorType(tensor.dtype),
            shape=ir.Shape(array.shape),
            const_value=tensor,
        )
        self.constants.append(value)
        return value

    def check(self, count: int) -> None:
        """Refuse more iterations than can be written out."""
        size = count * max(1, len(self.body))
        if size > LARGEST_LOOP:
            raise self.refusal(
                f"may be written out in at most {LARGEST_LOOP} nodes, but {count} iterations of "
                f"{len(self.body)} are {size}: export it with fewer iterations"
            )

    def stacked(self, parts: Sequence[ir.Value], inner: ir.Value, axis: int) -> ir.Value:
        """Return what all iterations gave beside each other, along a new axis."""
        if parts:
            axes = self.constant(np.array([axis], np.int64))
            return self.add(
                "Concat", [self.add("Unsqueeze", [part, axes]) for part in parts], axis=axis
            )
        shape = inner.shape
        if shape is None or not shape.is_static() or inner.dtype is None:
            raise self.refusal(
                "without an iteration must give results of known shape, but does not"
            )
        extents = [int(extent) for extent in shape.numpy()]
        extents.insert(axis % (len(extents) + 1), 0)
        return self.constant(np.zeros(extents, inner.dtype.numpy()))

    def refusal(self, reason: str) -> ModelError:
        """Return the error that says why the loop cannot be written out."""
        return ModelError(f"{self.model}: node {self.label!r} ({self.node.op_type}) {reason}")


class _Loop(_Unrolled):
    def results(self) -> list[ir.Value]:
        """Append all iterations; return what the loop's results are now."""
        trips, condition, *state = self.node.inputs
        active, count = self._known(condition), self._count(trips, condition)
        self.check(count)
        carried: list[ir.Value] = [value for value in state if value is not None]
        collected: list[list[ir.Value]] = [[] for _ in self.body.outputs[1 + len(carried) :]]
        for step in range(count):
            number = self.constant(np.array(step, np.int64))
            going, *results = self.iterate(step, [number, self._flag(active), *carried])
            after, given = results[: len(carried)], results[len(carried) :]
            if isinstance(active, ir.Value):
                after = self._chosen(active, after, carried)
            carried = after
            for parts, value in zip(collected, given, strict=True):
                parts.append(value)
            active = self._next(active, going)
            if active is False:
                break
            if isinstance(active, ir.Value) and collected:
                raise self.refusal(
                    "ends when its values say so, so the length of its results is not known when "
                    "compiling: export it without results of every iteration"
                )
        inner = self.body.outputs[1 + len(carried) :]
        return [
            *carried,
            *(self.stacked(p, value, 0) for p, value in zip(collected, inner, strict=True)),
        ]

    def _count(self, trips: Value, condition: Value) -> int:
        if self._known(condition) is False:
            return 0
        number = None if trips is None else ir.convenience.get_const_tensor(trips)
        if number is None:
            raise self.refusal(
                "must run a number of times that is known when compiling, but it does not: bind "
                "all shapes, or export it unrolled"
            )
        return max(0, int(number.numpy().reshape(())))

    def _known(self, condition: Value) -> bool | ir.Value:
        """Return a condition as a number where it is one."""
        while condition is not None and _producer(condition) == "Identity":
            condition = condition.producer().inputs[0]  # type: ignore[union-attr]
        if condition is None:
            return True
        tensor = ir.convenience.get_const_tensor(condition)
        return condition if tensor is None else bool(tensor.numpy().reshape(()))

    def _next(self, active: bool | ir.Value, going: ir.Value) -> bool | ir.Value:  # noqa: FBT001
        """Return whether there is a next iteration: none after one that was not run."""
        known = self._known(going)
        if not isinstance(active, ir.Value) or known is False or known is active:
            return known
        return active if known is True else self.add("And", [active, known])

    def _flag(self, active: bool | ir.Value) -> ir.Value:  # noqa: FBT001
        return active if isinstance(active, ir.Value) else self.constant(np.array(active))

    def _chosen(
        self, active: ir.Value, after: Sequence[ir.Value], before: Sequence[ir.Value]
    ) -> list[ir.Value]:
        flag = self.add("Squeeze", [active])  # it may have the shape (1,)
        return [
            new if new is old else self.add("Where", [flag, new, old])
            for new, old in zip(after, before, strict=True)
        ]


class _Scan(_Unrolled):
    def results(self) -> list[ir.Value]:
        """Append all iterations; return what the results are now."""
        n_scanned = self.node.attributes["num_scan_inputs"].as_int()
        values = [value for value in self.node.inputs if value is not None]
        carried, scanned = values[:-n_scanned], values[len(values) - n_scanned :]
        axes = self._listed("scan_input_axes", n_scanned)
        backwards = self._listed("scan_input_directions", n_scanned)
        count = self._count(scanned[0], axes[0])
        self.check(count)
        inner = self.body.outputs[len(carried) :]
        collected: list[list[ir.Value]] = [[] for _ in inner]
        for step in range(count):
            parts = []
            for value, axis, turned in zip(scanned, axes, backwards, strict=True):
                at = self.constant(np.array(count - 1 - step if turned else step, np.int64))
                parts.append(self.add("Gather", [value, at], axis=axis))
            results = self.iterate(step, [*carried, *parts])
            carried, given = results[: len(carried)], results[len(carried) :]
            for part, value in zip(collected, given, strict=True):
                part.append(value)
        axes = self._listed("scan_output_axes", len(inner))
        backwards = self._listed("scan_output_directions", len(inner))
        stacked = [
            self.stacked(parts[::-1] if turned else parts, value, axis)
            for parts, value, axis, turned in zip(collected, inner, axes, backwards, strict=True)
        ]
        return [*carried, *stacked]

    def _listed(self, attribute: str, count: int) -> list[int]:
        found = self.node.attributes.get(attribute)
        return [0] * count if found is None else list(found.as_ints())

    def _count(self, value: ir.Value, axis: int) -> int:
        extent = None if value.shape is None else value.shape[axis]
        if not isinstance(extent, int):
            raise self.refusal(
                "must scan a length that is known when compiling, but it does not: bind all shapes"
            )
        return extent


def _producer(value: ir.Value) -> str:
    node: ir.Node | None = value.producer()
    return "" if node is None else node.op_type

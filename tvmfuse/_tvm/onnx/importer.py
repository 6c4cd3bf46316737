"""TVM's ONNX importer, with our converters, names and errors.

TVM 0.27 prints on failure and forgets which node failed, makes extents of 0
symbolic, names values ``lv17`` and lets a converter return another shape or
element type than ONNX prescribes. That is put right by overriding steps of its
importer class; TVM itself is not changed.
"""

from __future__ import annotations

import contextlib
import io
import re
import warnings
from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
from tvm.relax.frontend.onnx import onnx_frontend

from tvmfuse._tvm import relax, tvm
from tvmfuse._tvm.failures import FAILURES, reason
from tvmfuse._tvm.labels import with_label
from tvmfuse._tvm.onnx.converters import CONVERTERS, qualified
from tvmfuse._tvm.onnx.grouped import array_of
from tvmfuse._tvm.onnx.node import Node, dtype_of, extents, is_tensor
from tvmfuse._tvm.onnx.weights import lift_weights
from tvmfuse.errors import ModelError


def import_graph(graph: onnx.GraphProto, *, opset: int, name: str, keep_params: bool) -> Any:
    """Convert a checked and simplified graph into a Relax module.

    Parameters
    ----------
    graph : onnx.GraphProto
        Its inputs have known shapes and no default values, its operators are
        all supported, and it holds no control flow.
    opset : int
        Version of ONNX's own operators.
    name : str
        What the model is called in messages.
    keep_params : bool
        Whether weights become parameters that follow the inputs.

    Returns
    -------
    IRModule
        With one function, ``main``. Its parameters are the inputs in order; a
        variable is named after the ONNX value that it holds.

    Raises
    ------
    ModelError
        A node cannot be converted; the message names it.
    """
    importer = _Importer(graph)
    # The base class reports a failing converter by print().
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            module = importer.from_onnx(graph, opset)
        except FAILURES as error:
            importer.close()
            raise ModelError(
                f"{name}: {importer.place()} cannot be imported: {reason(error)}: "
                "change that node, or cut the model there"
            ) from error
    module = _labelled(module, importer.labels)
    if keep_params:
        module = lift_weights(module, importer.weights)
    return module


class _Importer(onnx_frontend.ONNXGraphImporter):
    """The base class with the steps replaced that go wrong."""

    def __init__(self, graph: onnx.GraphProto) -> None:
        super().__init__(shape_dict={}, dtype_dict={}, sanitize=False)
        self.weights: dict[relax.Expr, str] = {}
        self.labels: dict[str, str] = {}
        self._current: onnx.NodeProto | None = None
        self._declared = {value.name: value.type for value in (*graph.value_info, *graph.output)}

    def place(self) -> str:
        """Say which node is being converted."""
        node = self._current
        if node is None:
            return "the graph"
        return f"node {self._label()!r} ({qualified(node.domain, node.op_type)})"

    def _label(self) -> str:
        """Return what a person calls the node that is being converted."""
        assert self._current is not None
        return self._current.name or next(iter(self._current.output), "")

    def close(self) -> None:
        """End the block that a failure leaves open, or TVM complains on stderr."""
        if self._current is not None:
            self.bb._end_block()

    def _check_for_unsupported_ops(self, graph: onnx.GraphProto) -> None:
        """Do nothing: operators are checked earlier, in subgraphs too."""

    def _parse_array(self, tensor: onnx.TensorProto) -> Any:
        return array_of(tensor)

    def _parse_graph_initializers(self, graph: onnx.GraphProto) -> None:
        super()._parse_graph_initializers(graph)
        self.weights = {self._nodes[t.name]: identifier(t.name) for t in graph.initializer}

    def _parse_graph_input(self, graph: onnx.GraphProto) -> None:
        # The base class takes an extent of 0 for an unknown one.
        for value in graph.input:
            kind = value.type.tensor_type
            shape = [dim.dim_value for dim in kind.shape.dim]
            dtype = onnx_frontend.get_type(kind.elem_type)
            variable = self._new_var(identifier(value.name), shape, dtype)
            self._nodes[value.name] = self._inputs[value.name] = variable
            self._num_input += 1

    def _construct_nodes(self, graph: onnx.GraphProto) -> None:
        """Convert one node at a time, and bind each result to a named variable."""
        for node in graph.node:
            self._current = node
            self._check_extents(node)
            super()._construct_nodes(SimpleNamespace(node=[node]))
            for name in filter(None, node.output):
                self._finish(name, self._nodes[name])
        self._current = None

    def _check_extents(self, node: onnx.NodeProto) -> None:
        """Raise where a node reads what ``NonZero`` and its like have measured out."""
        for name in node.input:
            value = self._nodes.get(name)
            if is_tensor(value) and extents(value) is None:
                raise ValueError(f"the values of {name!r} tell its shape, and shapes must be known")

    def _finish(self, name: str, value: Any) -> None:
        if not is_tensor(value) or tvm.ir.is_prim_expr(value):
            return
        self._check_type(name, value)
        if isinstance(value, tvm.ir.Call):
            value = self._nodes[name] = self.bb.emit(value, name_hint=identifier(name))
        if isinstance(value, relax.Var):  # one of several results is bound already
            assert self._current is not None
            self.labels.setdefault(str(value.name), self._current.name or name)

    def _check_type(self, name: str, value: relax.Expr) -> None:
        """Raise unless ``value`` has a possible type, and the one that ONNX infers for it."""
        assert self._current is not None
        shape = extents(value)
        if shape is not None and any(extent < 0 for extent in shape):
            raise ValueError(f"{name!r} would have the shape {shape}")
        if name not in self._declared or self._current.domain not in ("", "ai.onnx"):
            return
        kind = self._declared[name].tensor_type
        if kind.elem_type and onnx_frontend.get_type(kind.elem_type) != dtype_of(value):
            raise TypeError(
                f"ONNX prescribes {onnx_frontend.get_type(kind.elem_type)} for {name!r}, "
                f"but TVM makes it {dtype_of(value)}"
            )
        if shape is None or not kind.HasField("shape"):
            return
        if not all(dim.HasField("dim_value") for dim in kind.shape.dim):
            return
        prescribed = tuple(dim.dim_value for dim in kind.shape.dim)
        if prescribed != shape:
            raise ValueError(
                f"ONNX prescribes the shape {prescribed} for {name!r}, but TVM makes it {shape}"
            )

    def _convert_operator(
        self, op_name: str, inputs: Sequence[Any], attrs: dict[str, Any], opset: int
    ) -> Any:
        assert self._current is not None
        empty = self._without_elements()
        if empty is not None:
            return empty
        converter = CONVERTERS.get(qualified(self._current.domain, op_name))
        if converter is None:
            return super()._convert_operator(op_name, inputs, attrs, opset)
        wanted = [k for k, name in enumerate(self._current.output) if name]
        node = Node(
            builder=self.bb,
            inputs=inputs,
            attrs=attrs,
            n_outputs=wanted[-1] + 1,
            op=op_name,
            label=self._label(),
            convert=self._convert_by_tvm,
        )
        return self.bb.normalize(converter(node))

    def _without_elements(self) -> Any:
        """Return the results of a node that all have no elements: converters divide by 0."""
        assert self._current is not None
        kinds = [self._declared.get(name) for name in self._current.output if name]
        if not kinds or not all(kind is not None and _is_empty(kind) for kind in kinds):
            return None
        results = [
            relax.const(np.zeros([dim.dim_value for dim in kind.shape.dim]), dtype)
            for kind in (kind.tensor_type for kind in kinds if kind is not None)
            if (dtype := onnx_frontend.get_type(kind.elem_type))
        ]
        return results[0] if len(self._current.output) == 1 else relax.Tuple(results)

    def _convert_by_tvm(
        self, op: str, inputs: Sequence[Any], attrs: Mapping[str, Any]
    ) -> relax.Expr:
        operands = onnx_frontend.onnx_input(inputs)
        return super()._convert_operator(op, operands, dict(attrs), self.opset)


def _is_empty(kind: onnx.TypeProto) -> bool:
    """Whether a tensor of this type has no elements."""
    dims = kind.tensor_type.shape.dim
    is_known = kind.tensor_type.elem_type and all(dim.HasField("dim_value") for dim in dims)
    return bool(is_known) and any(dim.dim_value == 0 for dim in dims)


def _labelled(module: Any, labels: Mapping[str, str]) -> Any:
    """Keep the name of the node with every call that its conversion made.

    Parameters
    ----------
    module : IRModule
        In the order of the nodes: what has no label comes before the result of its node.
    labels : Mapping of str to str
        Name of the node, by the variable that its result is bound to.
    """
    main = module["main"]
    blocks = []
    for block in main.body.blocks:
        bindings, label = [], ""
        for binding in reversed(block.bindings):
            label = labels.get(str(binding.var.name), label)
            if label and isinstance(binding.value, tvm.ir.Call):
                value = with_label(binding.value, label)
                binding = relax.VarBinding(binding.var, value)
            bindings.append(binding)
        blocks.append(type(block)(bindings[::-1]))
    body = relax.SeqExpr(blocks, main.body.body)
    module["main"] = relax.Function(main.params, body, main.ret_ty, main.is_pure, main.attrs)
    return relax.transform.Normalize()(module)


def identifier(name: str) -> str:
    """Return ``name`` as an identifier of C: it may end up in generated source."""
    cleaned = re.sub(r"\W", "_", name, flags=re.ASCII)
    return cleaned if cleaned[:1].isalpha() or cleaned[:1] == "_" else f"v_{cleaned}"

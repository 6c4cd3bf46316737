"""A plan as a picture: DOT, Mermaid, or an ONNX model of functions for Netron."""

from __future__ import annotations

import re
from collections.abc import Sequence

import onnx
from onnx import TensorProto, helper

from tvmfuse.report.units import Unit

_DOMAIN = "tvmfuse"


def dot(units: Sequence[Unit], *, name: str) -> str:
    """Return the kernels and what each reads in Graphviz's language."""
    lines = [f"digraph {_quoted(name)} {{", '  node [shape=box, style="rounded,filled"];']
    for number, unit in enumerate(units):
        colour = "#c5f6fa" if unit.pattern else "#f1f3f5"
        text = "\\n".join(_escaped(line) for line in _text(unit))
        lines.append(f'  k{number} [label="{text}", fillcolor="{colour}"];')
    lines += [
        f"  k{read} -> k{number};" for number, unit in enumerate(units) for read in unit.reads
    ]
    return "\n".join([*lines, "}"]) + "\n"


def mermaid(units: Sequence[Unit]) -> str:
    """Return the kernels and what each reads in Mermaid's language."""
    lines = ["flowchart TD"]
    for number, unit in enumerate(units):
        text = "<br>".join(line.replace('"', "#quot;") for line in _text(unit))
        lines.append(f'  k{number}["{text}"]{":::fused" if unit.pattern else ""}')
    lines += [
        f"  k{read} --> k{number}" for number, unit in enumerate(units) for read in unit.reads
    ]
    return "\n".join([*lines, "  classDef fused fill:#c5f6fa"]) + "\n"


def functions(units: Sequence[Unit], *, name: str) -> onnx.ModelProto:
    """Return an ONNX model in which each group is a function of its operators.

    It is made to be looked at: it has the structure of the plan, no weights and no shapes.

    Parameters
    ----------
    units : sequence of Unit
        The kernels in order.
    name : str
        What the graph is called.
    """
    nodes, definitions = [], []
    for number, unit in enumerate(units):
        inputs = [f"v{read}" for read in unit.reads] or ["input"]
        output = f"v{number}"
        label = f"{number}: {unit.nodes[0]}" if unit.nodes else str(number)
        if not unit.pattern:
            nodes.append(helper.make_node(_identifier(unit.ops[0]), inputs, [output], label))
            continue
        kind = f"{_identifier(unit.pattern)}_{number}"
        nodes.append(helper.make_node(kind, inputs, [output], label, domain=_DOMAIN))
        definitions.append(_function(kind, unit, inputs, output))
    read = {i for unit in units for i in unit.reads}
    last = [f"v{i}" for i in range(len(units)) if i not in read]
    values = {
        kind: [helper.make_tensor_value_info(each, TensorProto.FLOAT, None) for each in names]
        for kind, names in (("inputs", ["input"]), ("outputs", last))
    }
    return helper.make_model(
        helper.make_graph(nodes, name, values["inputs"], values["outputs"]),
        functions=definitions,
        opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid(_DOMAIN, 1)],
        ir_version=8,
    )


def _function(kind: str, unit: Unit, inputs: Sequence[str], output: str) -> onnx.FunctionProto:
    chain, value = [], list(inputs)
    for i, op in enumerate(unit.ops):
        made = output if i == len(unit.ops) - 1 else f"{output}_{i}"
        chain.append(helper.make_node(_identifier(op), value, [made]))
        value = [made]
    opsets = [helper.make_opsetid("", 17)]
    return helper.make_function(_DOMAIN, kind, list(inputs), [output], chain, opsets)


def _edges(units: Sequence[Unit]) -> list[tuple[int, int]]:
    return [(read, number) for number, unit in enumerate(units) for read in unit.reads]


def _text(unit: Unit) -> list[str]:
    lines = [unit.title, ", ".join(unit.nodes[:3])]
    if unit.pattern:
        lines.append(f"{unit.pattern}: {unit.time_us:.3g} of {unit.apart_us:.3g} µs")
    return [line for line in lines if line]


def _quoted(text: str) -> str:
    return f'"{_escaped(text)}"'


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"')


def _identifier(name: str) -> str:
    return re.sub(r"\W", "_", name)

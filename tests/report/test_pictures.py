"""The page and the pictures of a plan: whole, linked, and safe to open."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import onnx
import pytest

from tests import graphs
from tvmfuse import _pipeline
from tvmfuse._pipeline import Planned
from tvmfuse._tvm import relax
from tvmfuse.plan import FusionPlan
from tvmfuse.report import explain, graph, html, trace
from tvmfuse.report.units import Unit, units
from tvmfuse.targets import resolve

op = relax.op
VOID = {"meta", "input", "br"}


@pytest.fixture(scope="module")
def planned() -> Planned:
    def network(x: Any, weight: Any) -> Any:
        y = op.nn.relu(op.matmul(x, weight))
        return op.add(op.nn.softmax(op.matmul(y, weight)), op.cumsum(y, axis=1))

    return _pipeline.plan(graphs.module(network, (8, 8), (8, 8)), resolve("cpu"))


@pytest.fixture(scope="module")
def found(planned: Planned) -> tuple[Unit, ...]:
    return units(planned)


class Page(HTMLParser):
    """Reads a page; complains where a tag is not closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.ids: Counter[str] = Counter()
        self.links: list[str] = []
        self.sources: list[str] = []
        self.text: list[str] = []
        self.data = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        if tag not in VOID:
            self.open.append(tag)
        self.ids.update([str(given["id"])] if "id" in given else [])
        self.links += [str(given["href"])] if "href" in given else []
        self.sources += [str(given[key]) for key in ("src", "srcset") if key in given]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script" and data.startswith("{"):
            self.data = data
        self.text.append(data)


def page(planned: Planned, found: tuple[Unit, ...], name: str = "net") -> Page:
    text = html.page(
        explain.explain_planned(planned),
        found,
        planned.plan,
        name=name,
        target="cpu",
        device="some CPU",
    )
    assert "http://" not in text
    assert "https://" not in text
    return Page(text)


def test_units_are_in_order_and_hold_every_operator(
    planned: Planned, found: tuple[Unit, ...]
) -> None:
    assert sorted(i for unit in found for i in unit.bindings) == list(
        range(len(planned.graphs["main"].deps))
    )
    for number, unit in enumerate(found):
        assert all(read < number for read in unit.reads)
    assert any(unit.pattern and unit.saved_us > 0 for unit in found)


def test_the_page_is_whole_and_its_links_lead_somewhere(
    planned: Planned, found: tuple[Unit, ...]
) -> None:
    read = page(planned, found)
    assert not read.open
    assert not read.sources
    assert max(read.ids.values()) == 1
    assert read.links
    assert {link.removeprefix("#") for link in read.links} <= set(read.ids)
    text = " ".join(read.text)
    for unit in found:
        assert unit.title in text
        assert all(node in text for node in unit.nodes)
    assert "the first condition that failed" in text


def test_the_page_holds_the_plan(planned: Planned, found: tuple[Unit, ...]) -> None:
    assert FusionPlan.from_json(json.loads(page(planned, found).data)) == planned.plan


def test_names_cannot_break_out_of_the_page(planned: Planned, found: tuple[Unit, ...]) -> None:
    evil = "</script><script>alert(1)</script>{{plan}}"
    marked = tuple(replace(unit, nodes=(evil,)) for unit in found)
    read = page(planned, marked, name=evil)
    assert not read.open
    assert "alert(1)" in " ".join(read.text)


def test_dot_and_mermaid_have_every_kernel_and_edge(found: tuple[Unit, ...]) -> None:
    edges = sum(len(unit.reads) for unit in found)
    dot = graph.dot(found, name='a "net"')
    assert dot.startswith('digraph "a \\"net\\"" {')
    assert dot.count(" [label=") == len(found)
    assert dot.count(" -> ") == edges
    mermaid = graph.mermaid(found)
    assert mermaid.count("[") == len(found)
    assert mermaid.count(" --> ") == edges


def test_groups_are_functions_of_an_onnx_model(found: tuple[Unit, ...]) -> None:
    model = onnx.load_from_string(graph.functions(found, name="net").SerializeToString())
    assert len(model.graph.node) == len(found)
    groups = {function.name: function for function in model.functions}
    for unit, node in zip(found, model.graph.node, strict=True):
        assert bool(unit.pattern) == (node.op_type in groups)
        if unit.pattern:
            assert len(groups[node.op_type].node) == len(unit.ops)


def test_the_timeline_adds_up(found: tuple[Unit, ...]) -> None:
    events = [e for e in trace.timeline(found)["traceEvents"] if e["ph"] == "X"]
    for thread, attribute in enumerate(("time_us", "apart_us")):
        own = [event for event in events if event["tid"] == thread]
        total = sum(getattr(unit, attribute) for unit in found)
        assert own[-1]["ts"] + own[-1]["dur"] == pytest.approx(total)
        assert [event["ts"] for event in own] == sorted(event["ts"] for event in own)

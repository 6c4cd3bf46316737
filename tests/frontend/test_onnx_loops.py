"""Loop and Scan are written out where the number of iterations is known."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx.reference import ReferenceEvaluator

from tests.graphs import run
from tvmfuse.errors import ModelError
from tvmfuse.frontend import import_model

X = np.array([1.0, -2.0, 0.5], "float32")


def model(graph: str, *, opset: int = 19) -> onnx.ModelProto:
    """Read a graph in ONNX's textual form."""
    return onnx.parser.parse_model(f'<ir_version: 9, opset_import: ["" : {opset}]> {graph}')


def check(graph: str, *inputs: Any) -> None:
    """Compile a graph, and compare it with ONNX's own evaluator."""
    loop = model(graph)
    names = [value.name for value in loop.graph.input]
    expected = ReferenceEvaluator(loop).run(None, dict(zip(names, inputs, strict=True)))
    found = run(import_model(loop).module, *inputs)
    for result, right in zip(found, expected, strict=True):
        assert result.shape == right.shape
        np.testing.assert_allclose(result, right, rtol=1e-6)


def counted(trips: int, body: str, *, results: str = "float[3] y, float[n,3] every") -> str:
    outputs = ", ".join(part.split()[-1] for part in results.split(", "))
    return f"""g (float[3] x) => ({results})
      <int64 n = {{{trips}}}, bool go = {{1}}>
      {{ {outputs} = Loop (n, go, x) <body = b {body}> }}"""


SUMS = """(int64 i, bool c, float[3] a) => (bool c2, float[3] a2, float[3] seen)
  { c2 = Identity (c) f = Cast <to = 1> (i) a2 = Add (a, f) seen = Mul (a2, a2) }"""


@pytest.mark.parametrize("trips", [1, 4])
def test_a_counted_loop_gives_its_last_values_and_those_of_every_iteration(trips: int) -> None:
    check(counted(trips, SUMS, results=f"float[3] y, float[{trips},3] every"), X)


def test_a_loop_without_an_iteration_gives_what_it_was_given() -> None:
    y, every = run(
        import_model(model(counted(0, SUMS, results="float[3] y, float[0,3] e"))).module, X
    )
    np.testing.assert_array_equal(y, X)
    assert every.shape == (0, 3)


def test_a_loop_ends_where_its_values_say_so() -> None:
    body = """(int64 i, bool c, float[3] a) => (bool c2, float[3] a2)
      <float two = {2}, float most = {10}>
      { a2 = Mul (a, two) s = ReduceMax <keepdims = 0> (a2) c2 = Less (s, most) }"""
    check(counted(9, body, results="float[3] y"), X)


def test_a_loop_within_a_loop_is_written_out() -> None:
    body = """(int64 i, bool c, float[3] a) => (bool c2, float[3] a2)
      <int64 m = {2}, bool go = {1}>
      { c2 = Identity (c)
        a2 = Loop (m, go, a) <body = inner
          (int64 j, bool d, float[3] b) => (bool d2, float[3] b2)
          { d2 = Identity (d) k = Add (i, j) f = Cast <to = 1> (k) b2 = Add (b, f) }> }"""
    check(counted(3, body, results="float[3] y"), X)


def test_a_loop_may_read_what_lies_around_it() -> None:
    body = """(int64 i, bool c, float[3] a) => (bool c2, float[3] a2)
      { c2 = Identity (c) a2 = Add (a, x) }"""
    check(counted(3, body, results="float[3] y"), X)


def test_a_scan_goes_over_its_inputs_in_either_direction() -> None:
    graph = """g (float[2] s, float[3,2] x) => (float[2] last, float[2,3] every)
      { last, every = Scan <num_scan_inputs = 1, scan_input_directions = [1],
          scan_output_axes = [1], body = b (float[2] a, float[2] e) => (float[2] a2, float[2] y)
          { a2 = Add (a, e) y = Mul (a2, e) }> (s, x) }"""
    scan = model(graph)
    s, x = np.array([1, 2], "f4"), np.arange(6, dtype="f4").reshape(3, 2)
    last, every = run(import_model(scan).module, s, x)
    sums = s + np.cumsum(x[::-1], axis=0)
    np.testing.assert_allclose(last, sums[-1])
    np.testing.assert_allclose(every, (sums * x[::-1]).T)


BODY = """(int64 i, bool c, float[3] a) => (bool c2, float[3] a2)
  { c2 = Identity (c) a2 = Add (a, x) }"""


@pytest.mark.parametrize(
    ("graph", "words"),
    [
        (
            f"""g (float[3] x, int64 n) => (float[3] y) <bool go = {{1}}>
              {{ y = Loop (n, go, x) <body = b {BODY}> }}""",
            "a number of times that is known when compiling",
        ),
        (counted(100_000, BODY, results="float[3] y"), "at most 10000 nodes"),
        (
            counted(
                4,
                """(int64 i, bool c, float[3] a) => (bool c2, float[3] a2, float[3] seen)
                  <float most = {10}>
                  { a2 = Add (a, a) seen = Identity (a2)
                    s = ReduceMax <keepdims = 0> (a2) c2 = Less (s, most) }""",
            ),
            "length of its results is not known",
        ),
    ],
    ids=["unknown", "endless", "of unknown length"],
)
def test_a_loop_that_cannot_be_written_out_says_why(graph: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        import_model(model(graph))

"""The groups to blame are found among many."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.passes.test_emit import Shifted
from tvmfuse import _pipeline
from tvmfuse._tvm import relax
from tvmfuse.frontend import Model, import_model
from tvmfuse.patterns.registry import builtin
from tvmfuse.report import bisect, cutout
from tvmfuse.runtime.samples import random_inputs
from tvmfuse.targets import resolve

RNG = np.random.default_rng(0)


@given(st.integers(1, 40), st.data())
@settings(deadline=None)
def test_minimal_finds_every_part_of_a_cause(n_items: int, data: Any) -> None:
    items: Any = list(range(n_items))
    cause = data.draw(st.sets(st.sampled_from(items), min_size=1, max_size=3))
    asked: list[Any] = []

    def fails(part: Any) -> bool:
        asked.append(tuple(part))
        return cause <= set(part)

    assert set(bisect.minimal(items, fails)) == cause
    assert all(list(part) == sorted(part) for part in asked)
    if len(cause) == 1:
        assert len(asked) <= 2 * n_items.bit_length()


def network(n_layers: int = 6) -> Model:
    """Return products with bias and activation; the fourth is what ``Shifted`` matches."""
    builder = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4, 8), "float32"))
    with builder.function("main", [x]):
        with builder.dataflow():
            y: Any = x
            for i in range(n_layers):
                weight = relax.const(RNG.normal(0, 0.5, (8, 8)).astype("float32"))
                product = builder.emit(relax.op.matmul(y, weight))
                if i == 3:
                    y = builder.emit(relax.op.subtract(builder.emit(relax.op.nn.relu(product)), y))
                else:
                    y = builder.emit(relax.op.nn.silu(product))
            out = builder.emit_output(relax.op.abs(y))
        builder.emit_func_output(out)
    return import_model(builder.get())


@pytest.fixture
def wrong_pattern() -> Shifted:
    pattern = Shifted()
    pattern.is_right = False
    return pattern


def builds(model: Model, pattern: Shifted) -> bisect.Builds:
    options = _pipeline.Options(registry=builtin().with_pattern(pattern))
    planned = _pipeline.plan(model.module, resolve("cpu"), options=options)
    return bisect.Builds(model, planned, resolve("cpu"))


def test_the_wrong_pattern_is_found_among_right_ones(wrong_pattern: Shifted) -> None:
    model = network()
    built = builds(model, wrong_pattern)
    assert len(built.groups) > 3
    found = bisect.find_wrong(built, random_inputs(model.signature.inputs), rtol=1e-3)
    assert [group.candidate.pattern for group in found.culprits] == ["shifted"]
    assert found.n_builds <= 10
    assert not found.fused[0].is_close
    assert not found.blamed[0].is_close
    assert found.unfused[0].is_close


def test_a_right_plan_has_no_culprit() -> None:
    model = network()
    found = bisect.find_wrong(
        builds(model, Shifted()), random_inputs(model.signature.inputs), rtol=1e-3
    )
    assert found.culprits == ()
    assert found.n_builds == 2


def test_what_is_wrong_without_fusion_is_not_blamed_on_it() -> None:
    model = network()
    feeds = random_inputs(model.signature.inputs)
    (output,) = model.signature.outputs
    reference = {output.name: np.full((4, 8), 3, "float32")}
    found = bisect.find_wrong(builds(model, Shifted()), feeds, reference=reference, rtol=1e-3)
    assert found.culprits == ()
    assert not found.unfused[0].is_close


def test_the_cut_out_has_the_values_that_reach_the_group(wrong_pattern: Shifted) -> None:
    model = network()
    feeds = random_inputs(model.signature.inputs)
    built = builds(model, wrong_pattern)
    (group,) = [g for g in built.groups if g.candidate.pattern == "shifted"]
    cut = cutout.cut_out(model, built.planned, resolve("cpu"), group.candidate, feeds)
    (value,) = cut.inputs.values()
    y = feeds["x"].astype("float64")
    for i in range(3):
        z = y @ _weights(model)[i]
        y = z / (1 + np.exp(-z))
    np.testing.assert_allclose(value, y, rtol=1e-4, atol=1e-5)


def _weights(model: Model) -> list[Any]:
    found: list[Any] = []
    for block in model.module["main"].body.blocks:
        for binding in block.bindings:
            if str(getattr(getattr(binding.value, "op", None), "name", "")) == "relax.matmul":
                found.append(binding.value.args[1].value.numpy().astype("float64"))
    return found


def test_a_kind_that_slows_is_found() -> None:
    class Sleepy(Shifted):
        """The same kernel, computed over and over."""

        def lower(self, x: Any, weight: Any) -> Any:
            from tvmfuse._tvm import te, tirx

            k = te.reduce_axis((0, weight.shape[0] * 20000), name="k")
            n = weight.shape[0]
            product = te.compute(
                (x.shape[0], weight.shape[1]),
                lambda i, j: te.sum(x[i, k % n] * weight[k % n, j] / 20000.0, axis=k),
                name="product",
            )
            zero = tirx.const(0.0, "float32")
            return te.compute(
                product.shape, lambda i, j: te.max(product[i, j], zero) - x[i, j], name="shifted"
            )

    model = network()
    found = bisect.find_slow(
        builds(model, Sleepy()), random_inputs(model.signature.inputs), rounds=3
    )
    assert found[0].groups[0].candidate.pattern == "shifted"
    assert found[0].ratio > 5

"""Attention is recognised in every form that exporters write, and computed right."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
import pytest

import tvmfuse
from tvmfuse import _pipeline, testing
from tvmfuse.frontend import import_model
from tvmfuse.targets import resolve

FORMS = sorted((Path(__file__).parents[1] / "cases" / "attention").glob("*.onnx"))
# One of each kind is compiled in every run; the others differ from these by their names.
SAMPLES = (
    "bert_eager_op17_script",
    "gpt2_sdpa_op18",
    "llama_sdpa_op23",
    "masked_fill_op18",
    "sd_cross_bmm_op18",
    "t5_eager_op18",
    "torch_gqa_op18",
    "torch_sdpa_bool_mask_op14_script",
    "torch_sdpa_bool_mask_op23",
)
COMPILED = [
    pytest.param(path, id=path.stem, marks=[] if path.stem in SAMPLES else pytest.mark.slow)
    for path in FORMS
]


def test_the_forms_are_there() -> None:
    assert len(FORMS) == 45
    assert {path.stem for path in FORMS} >= set(SAMPLES)


@pytest.mark.parametrize("path", FORMS, ids=lambda path: path.stem)
def test_every_softmax_is_within_an_attention(path: Path) -> None:
    planned = _pipeline.plan(import_model(path).module, resolve("cpu"))
    operators = planned.graphs["main"].ops
    softmaxes = {i for i, operator in enumerate(operators) if operator == "relax.nn.softmax"}
    groups = [g.candidate for g in planned.plan.groups if g.candidate.pattern == "attention"]
    assert softmaxes
    assert softmaxes <= {binding for group in groups for binding in group.bindings}


@pytest.mark.parametrize("path", COMPILED)
def test_its_kernel_computes_what_onnx_runtime_computes(path: Path) -> None:
    reference = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    feed = {item.name: _value(item.name, item.type, item.shape) for item in reference.get_inputs()}
    expected = reference.run(None, feed)
    compiled = tvmfuse.compile(path)
    families = {kernel.family for kernel in compiled.kernels if kernel.pattern == "attention"}
    assert families == {"attention"}
    session = tvmfuse.Session.of(compiled)
    for found, exact in zip(session.run(None, feed), expected, strict=True):
        testing.assert_close(found, exact)


def _value(name: str, dtype: str, shape: list[int]) -> np.ndarray:
    """Return ids below the vocabulary of 16, a mask of 0 and 1, or any number."""
    if dtype == "tensor(float)":
        return testing.random_array(shape, "float32", seed=len(name))
    below = 16 if name == "input_ids" else 2
    values = np.random.default_rng(0).integers(0, below, shape)
    values[..., 0] = 1  # a row that is masked throughout is NaN in one and not in the other
    return values.astype("bool" if dtype == "tensor(bool)" else "int64")

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tvmfuse import bundle
from tvmfuse.runtime import InferenceSession

if TYPE_CHECKING:
    from tvmfuse.compiled import Compiled


@pytest.mark.peers
def test_the_calls_of_a_program_written_for_onnxruntime_give_the_same(
    compiled: Compiled, affine_onnx: Path, tmp_path: Path
) -> None:
    import onnxruntime

    path = bundle.save(compiled, tmp_path / "m.tvmfuse").path
    makers = (
        (onnxruntime.InferenceSession, affine_onnx),
        (InferenceSession, path),
        (InferenceSession, affine_onnx),
    )
    answers = []
    for make, model in makers:
        session = make(str(model), providers=["CPUExecutionProvider"])
        (x,) = session.get_inputs()
        (y,) = session.get_outputs()
        assert (x.name, x.shape, x.type) == ("x:0", [2, 3], "tensor(float)")
        assert (y.name, y.shape, y.type) == ("y", [2, 3], "tensor(float)")
        answers.append(session.run([y.name], {x.name: np.ones((2, 3), "float32")})[0])
    for answer in answers[1:]:
        np.testing.assert_allclose(answer, answers[0], rtol=1e-6)

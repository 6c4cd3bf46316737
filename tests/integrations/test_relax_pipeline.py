"""``relax_pipeline="tvmfuse"`` works for whoever imports both packages, in any order."""

from __future__ import annotations

import subprocess
import sys
from types import ModuleType

import pytest

from tvmfuse.integrations import relax_pipeline

COMPILE = """
import numpy as np
x = relax.Var("x", relax.TensorType((5, 8), "float32"))
builder = relax.BlockBuilder()
with builder.function("main", [x]):
    with builder.dataflow():
        weight = relax.const(np.arange(24, dtype="float32").reshape(8, 3) / 24)
        y = builder.emit_output(relax.op.nn.relu(relax.op.matmul(x, weight)))
    builder.emit_func_output(y)
executable = tvm.compile(builder.get(), "llvm", relax_pipeline="tvmfuse")
machine = relax.VirtualMachine(executable, tvm.cpu())
values = np.linspace(-1, 1, 40, dtype="float32").reshape(5, 8)
found = machine["main"](tvm.runtime.tensor(values)).numpy()
exact = np.maximum(values.astype("float64") @ (np.arange(24).reshape(8, 3) / 24), 0)
print(np.abs(found - exact).max() < 1e-5)
"""


def run(code: str) -> str:
    """Run ``code`` in a process of its own and return what it printed."""
    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


@pytest.mark.parametrize(
    "imports",
    [
        "import tvmfuse\nimport tvm\nfrom tvm import relax",
        "import tvm\nfrom tvm import relax\nimport tvmfuse",
        "import tvmfuse\nfrom tvmfuse._tvm import relax, tvm",
    ],
    ids=["before TVM", "after TVM", "through our door"],
)
def test_the_name_is_known_whichever_package_comes_first(imports: str) -> None:
    assert run(imports + COMPILE) == "True"


def test_importing_us_imports_no_tvm_and_leaves_one_finder() -> None:
    code = """
import sys, tvmfuse
from tvmfuse.integrations import relax_pipeline
relax_pipeline.install()
print("tvm" in sys.modules, sum(isinstance(f, relax_pipeline._Finder) for f in sys.meta_path))
"""
    assert run(code) == "False 1"


def test_the_finder_leaves_once_tvm_is_there() -> None:
    code = """
import sys, tvmfuse
import tvm.relax
from tvmfuse.integrations import relax_pipeline
print(sum(isinstance(f, relax_pipeline._Finder) for f in sys.meta_path))
print("tvmfuse" in tvm.relax.pipeline.PIPELINE_MAP)
"""
    assert run(code).split() == ["0", "True"]


def test_a_name_that_is_taken_is_left_alone() -> None:
    module = ModuleType("pipeline")
    module.PIPELINE_MAP = {relax_pipeline.NAME: "another"}  # type: ignore[attr-defined]
    relax_pipeline._register(module)
    assert module.PIPELINE_MAP == {relax_pipeline.NAME: "another"}

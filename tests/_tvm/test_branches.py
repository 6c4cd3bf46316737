"""Branches that reshape what they compute do not read memory that nobody allocated."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from tests._tvm.branching import module
from tvmfuse import testing
from tvmfuse._pipeline import pipeline
from tvmfuse._tvm import tvm
from tvmfuse.targets import resolve


@pytest.mark.parametrize("condition", [True, False])
def test_both_branches_are_right(*, condition: bool) -> None:
    target = resolve("cpu")
    executable = tvm.compile(module(), target.tvm(), relax_pipeline=pipeline(target))
    x = testing.random_array((4, 6), "float32")
    (found,) = testing.run(executable, [x, np.array(condition)])
    testing.assert_close(found, x.astype("f8") + x if condition else x.astype("f8") * x)


BY_TVM = """
import numpy as np
from tests._tvm.branching import module
from tvmfuse import testing
from tvmfuse._tvm import relax, tvm

target = tvm.target.Target("llvm")
pipeline = relax.get_default_pipeline(target)
executable = tvm.compile(module(), target, relax_pipeline=pipeline)
x = testing.random_array((4, 6), "float32")
for condition in (True, False):
    (found,) = testing.run(executable, [x, np.array(condition)])
    testing.assert_close(found, x.astype("f8") + x if condition else x.astype("f8") * x)
"""


def test_tvm_still_crashes() -> None:
    done = subprocess.run([sys.executable, "-c", BY_TVM], capture_output=True, check=False)
    assert done.returncode != 0

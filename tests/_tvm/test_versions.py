from __future__ import annotations

import subprocess
import sys

import pytest

from tvmfuse._tvm import versions
from tvmfuse.errors import EnvironmentMismatchError


def test_installed_pair_is_accepted():
    versions.check()


@pytest.mark.parametrize(
    ("tvm", "ffi"),
    [("0.27.0.post1", "0.1.15.post2"), ("0.26.0", "0.1.14.post1"), ("none", "none")],
)
def test_other_pair_is_refused_with_what_to_install(tvm, ffi, monkeypatch):
    monkeypatch.setattr(versions, "installed", lambda: (tvm, ffi))
    with pytest.raises(EnvironmentMismatchError, match="pip install 'apache-tvm==") as caught:
        versions.check()
    assert f"found apache-tvm {tvm} with apache-tvm-ffi {ffi}" in str(caught.value)


def test_missing_package_counts_as_none():
    assert versions._version("no-such-distribution") == "none"


def test_module_serialises_with_the_installed_pair():
    """In a child process: a wrong pair ends in a segmentation fault."""
    code = """
from tvmfuse._tvm import relax, tvm
builder = relax.BlockBuilder()
x = relax.Var("x", relax.TensorType([2], "float32"))
with builder.function("main", [x]):
    builder.emit_func_output(builder.emit(relax.op.add(x, x)))
module = tvm.ir.load_json(tvm.ir.save_json(builder.get()))
assert [var.name_hint for var in module.get_global_vars()] == ["main"]
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)

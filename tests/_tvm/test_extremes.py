"""Maxima and minima that keep NaN: what they are, and how many instructions."""

import re

import numpy as np
import pytest

from tvmfuse._tvm import registers, te, tvm
from tvmfuse.kernels import approx, families
from tvmfuse.passes.schedule import machine_of
from tvmfuse.targets import resolve

N = 1024
SPECIAL = [np.nan, -np.nan, np.inf, -np.inf, 0.0, 1.0, -2.5, np.float32(1e-40)]


def compiled(cpu, combine, dtype="float32"):
    target = resolve(cpu)
    a, b = (te.placeholder((N,), dtype, name=name) for name in "ab")
    out = te.compute((N,), lambda i: combine(a[i], b[i]), name="out")
    scheduled = families.schedule(te.create_prim_func([a, b, out]), machine_of(target))
    module = tvm.IRModule({"main": scheduled.function.with_attr("global_symbol", "main")})
    return tvm.compile(module, target.tvm(), tir_pipeline=registers.PIPELINE)


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    ("combine", "reference"), [(approx.maximum, np.maximum), (approx.minimum, np.minimum)]
)
def test_nan_is_kept_in_either_operand(combine, reference, dtype):
    pairs = np.array([[a, b] for a in SPECIAL for b in SPECIAL], dtype)
    a, b = np.resize(pairs, (N, 2)).T.copy()
    out = np.empty(N, dtype)
    arrays = [tvm.runtime.tensor(array) for array in (a, b, out)]
    compiled("cpu", combine, dtype)(*arrays)
    np.testing.assert_array_equal(arrays[2].numpy(), reference(a, b))


@pytest.mark.parametrize("combine", [approx.maximum, approx.minimum])
def test_avx512_compares_once_and_blends_nothing(combine):
    assembly = compiled("cpu:x86-64-v4", combine).mod.inspect_source("asm")
    found = re.findall(r"\tv(max|min|cmp\w*|blend\w*|pmovd2m)p?s?\t.*zmm", assembly)
    extremes = [name for name in found if name in ("max", "min")]
    compares = [name for name in found if name.startswith("cmp")]
    assert len(extremes) == len(compares) > 0
    assert len(found) == 2 * len(extremes)


def test_arm_has_them_as_instructions():
    assembly = compiled("cpu:neoverse-n1", approx.maximum).mod.inspect_source("asm")
    assert re.search(r"\tfmax\tv\d+\.4s", assembly)
    assert not re.search(r"\tfcm\w+\tv\d+\.4s", assembly)

"""Products of 8-bit integers are exact, by every instruction that this machine has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, host
from tvmfuse._tvm import te, tvm
from tvmfuse.kernels import families
from tvmfuse.kernels.gemm import dots, integer
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.schedule import machine_of
from tvmfuse.targets import resolve
from tvmfuse.targets.cpu import instructions

SIZES = {"whole tiles": (24, 96, 64), "ragged": (7, 33, 17), "one row": (1, 40, 64)}
NEEDED = {
    "vpdpbusd512": {"avx512vnni"},
    "vpdpbusd256": {"avx512vnni", "avx512vl"},
    "pmaddwd512": {"avx512bw"},
    "pmaddwd256": {"avx2"},
    "sdot": {"dotprod"},
    "": set(),
}


def machine_with(dot: str) -> Machine:
    missing = NEEDED[dot] - instructions(resolve("cpu").attrs)
    if missing:
        pytest.skip(f"this machine lacks {', '.join(sorted(missing))}")
    lanes = dots.DOTS[dot].lanes if dot else 8
    return replace(MACHINES[f"{lanes} lanes"], dot=dot)


def values(low: int, high: int, shape: tuple[int, ...], dtype: str) -> Any:
    """Return random integers with the extremes among them."""
    array = np.random.default_rng(len(shape)).integers(low, high + 1, shape)
    array.flat[0], array.flat[-1] = low, high
    return array.astype(dtype)


@pytest.mark.parametrize("weight_dtype", ["int8", "int16"])
@pytest.mark.parametrize("x_dtype", ["int8", "uint8"])
@pytest.mark.parametrize("dot", NEEDED)
def test_product_is_exact(dot: str, x_dtype: str, weight_dtype: str) -> None:
    machine = machine_with(dot)
    for m, n, k in SIZES.values():
        low, high = (0, 255) if x_dtype == "uint8" else (-128, 127)
        x = values(low, high, (2, m, k), x_dtype)
        widest = (-128, 127) if weight_dtype == "int8" else (-255, 255)
        weight = values(*widest, (k, n), weight_dtype)
        assert_exact(x, weight, machine)


def test_sums_of_extremes_do_not_saturate() -> None:
    machine = machine_of(resolve("cpu"))
    weight = np.full((64, 16), -128, "int8")
    assert_exact(np.full((3, 64), 255, "uint8"), weight, machine)
    assert_exact(np.full((3, 64), -128, "int8"), weight, machine)


def assert_exact(x: Any, weight: Any, machine: Machine) -> None:
    n = weight.shape[1]
    chosen = integer.plan(str(x.dtype), str(weight.dtype), machine)
    columns = integer.tile(x.shape[-2], n, chosen, machine).columns
    arrays = [x, integer.pack_integers(weight, columns, chosen)]
    if chosen.shift:
        arrays.append(integer.column_sums(weight))
    tensors = [te.placeholder(a.shape, str(a.dtype), name=f"x{i}") for i, a in enumerate(arrays)]
    sums = tensors[2] if chosen.shift else None
    product = integer.emit_integers(*tensors[:2], sums, n, chosen, machine)
    scheduled = families.schedule(te.create_prim_func([*tensors, product]), machine)
    assert (scheduled.family, scheduled.note) == ("gemm", "")
    function = scheduled.function.with_attr("global_symbol", "main")
    library = tvm.compile(tvm.IRModule({"main": function}), host())
    out = tvm.runtime.tensor(np.zeros((*x.shape[:-1], n), "int32"))
    library["main"](*(tvm.runtime.tensor(array) for array in arrays), out)
    np.testing.assert_array_equal(out.numpy(), x.astype("int32") @ weight.astype("int32"))


@pytest.mark.parametrize(
    ("cpu", "dot"),
    [
        ("x86-64-v2", ""),
        ("x86-64-v3", "pmaddwd256"),
        ("x86-64-v4", "pmaddwd512"),
        ("alderlake", "vpdpbusd256"),
        ("cascadelake", "vpdpbusd512"),
        ("aarch64", ""),
        ("neoverse-n1", "sdot"),
    ],
)
def test_a_target_gets_its_best_instruction(cpu: str, dot: str) -> None:
    assert machine_of(resolve(f"cpu:{cpu}")).dot == dot

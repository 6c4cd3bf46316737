from __future__ import annotations

import pytest

from tests.store.kernels import scale_shift
from tvmfuse._tvm import te, tvm, tvm_ffi
from tvmfuse.errors import StoreError
from tvmfuse.store import keys


def test_names_and_attributes_do_not_change_the_key() -> None:
    plain = scale_shift()
    renamed = scale_shift(names="XYZ", indices=("p", "q"))
    dressed = renamed.with_attr("global_symbol", "fused_g0").with_attr("op_pattern", 4)
    assert {keys.workload_key(each) for each in (plain, renamed, dressed)} == {
        keys.workload_key(plain)
    }
    assert tvm_ffi.structural_equal(keys.normalise(plain), keys.normalise(dressed))


@pytest.mark.parametrize(
    "other",
    [{"rows": 32}, {"factor": 3.0}, {"dtype": "float16"}, {"is_swapped": True}],
    ids=str,
)
def test_what_is_computed_changes_the_key(other: dict) -> None:
    assert keys.workload_key(scale_shift(**other)) != keys.workload_key(scale_shift())


def test_loops_of_one_name_and_of_two_are_the_same_program() -> None:
    # The printer calls both loop nests i, j where the names are free again.
    first = scale_shift(indices=("i", "j"))
    second = scale_shift(indices=("v_i2", "i"))
    assert keys.workload_key(first) == keys.workload_key(second)


def test_the_key_is_the_one_of_every_installation() -> None:
    # Keys are kept in stores and packs: another one would lose all records in silence.
    assert keys.workload_key(scale_shift()) == (
        "bf2ac7af8e8ab3920070ce86666750514632a74ce572f6fea1147c2807f5230b"
    )


def test_a_workload_can_be_loaded_again() -> None:
    kept = keys.workload(scale_shift())
    assert keys.is_same_module(kept.module, tvm.ir.save_json(keys.normalise(scale_shift())))
    assert not keys.is_same_module(kept.module, keys.workload(scale_shift(rows=32)).module)
    assert kept.summary == "B+C (float32[64,16], float32[64,16])"
    assert kept.key == keys.workload_key(scale_shift())


def test_a_module_of_two_functions_is_no_workload() -> None:
    module = tvm.IRModule({"a": scale_shift(), "b": scale_shift()})
    with pytest.raises(StoreError, match="one function, but got 2"):
        keys.entry(module)


def test_extents_are_shown_as_numbers_and_names() -> None:
    n = tvm.tirx.Var("n", "int64")
    x = te.placeholder((n, tvm.tirx.const(4, "int64")), "float32", name="x")
    function = te.create_prim_func([x, te.compute(x.shape, lambda i, j: x[i, j] + 1.0, name="y")])
    assert keys.workload(function).summary == "y (float32[n,4], float32[n,4])"

import pytest

from tvmfuse.errors import TargetError
from tvmfuse.targets import metal, resolve


@pytest.mark.parametrize("chip", ["m1", "m2", "m3", "m4"])
def test_target_has_the_limits_of_the_chip_and_a_host_that_llvm_knows(chip: str) -> None:
    target = resolve(f"metal:{chip}")
    assert (target.kind, target.rules) == ("metal", "dlight")
    tvm_target = target.tvm()
    assert tvm_target.attrs["thread_warp_size"] == 32
    assert tvm_target.attrs["max_threads_per_block"] == 1024
    assert tvm_target.attrs["max_shared_memory_per_block"] == 32768
    assert tvm_target.host.attrs["mtriple"] == "arm64-apple-macos"
    assert tvm_target.host.attrs["mcpu"] == f"apple-{chip}"


def test_unknown_chip_is_an_error_that_lists_the_known() -> None:
    with pytest.raises(TargetError, match=r"metal:m0.*needs one of m1, m2, m3, m4"):
        metal.target("m0")


@pytest.mark.parametrize(
    ("chip", "brand", "fits"),
    [
        ("m1", "Apple M1", True),
        ("m1", "Apple M2 Pro", True),
        ("m4", "Apple M2", False),
        ("m1", "Intel(R) Core(TM) i7", False),
        ("m1", "", False),
    ],
)
def test_code_runs_on_the_same_or_a_later_chip(*, chip: str, brand: str, fits: bool) -> None:
    assert metal._fits(chip, brand) is fits

from random import Random

import pytest

from tvmfuse._tvm import te, tvm_ffi
from tvmfuse.errors import LoweringError
from tvmfuse.kernels import choices, families, gemm
from tvmfuse.kernels.tiling import Machine

MACHINE = Machine(lanes=8, registers=16, cores=4, l2_bytes=1 << 19)


def product():
    x, y = te.placeholder((32, 24), name="x"), te.placeholder((24, 48), name="y")
    return te.create_prim_func([x, y, gemm.emit_batched(x, y, MACHINE)])


def test_the_default_recorder_gives_the_default_kernel():
    recorder = choices.by_default()
    recorded = families.schedule(product(), MACHINE, recorder.choose)
    assert recorded.family == "gemm"
    assert tvm_ffi.structural_equal(
        recorded.function, families.schedule(product(), MACHINE).function
    )
    assert all(decision.chosen in decision.options for decision in recorder.decisions)


def test_a_random_kernel_is_repeated_from_its_record():
    kernels = set()
    for seed in range(6):
        recorder = choices.at_random(Random(seed))
        scheduled = families.schedule(product(), MACHINE, recorder.choose)
        assert not scheduled.note
        again = families.schedule(product(), MACHINE, choices.from_record(recorder.taken).choose)
        assert tvm_ffi.structural_equal(scheduled.function, again.function)
        kernels.add(tuple(recorder.taken.items()))
    assert len(kernels) > 1


@pytest.mark.parametrize(
    ("taken", "said"),
    [
        ({}, "lacks the decision 'rows'"),
        ({"rows": 5}, "must be one of [1, 2], but the record has 5"),
    ],
)
def test_a_record_that_does_not_fit_says_why(taken, said):
    choose = choices.from_record(taken).choose
    with pytest.raises(LoweringError) as caught:
        choose("rows", (1, 2), default=1)
    assert said in str(caught.value)

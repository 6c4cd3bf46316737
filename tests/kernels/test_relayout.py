"""Copies between plain tensors and channel blocks lose and invent nothing."""

from __future__ import annotations

import numpy as np
import pytest

from tests.kernels.contract import MACHINES, run
from tvmfuse import testing
from tvmfuse._tvm import te
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.convert import arranging, unblocking
from tvmfuse.passes.layout.forms import Blocked

SHAPES = [(1, 24, 9, 35), (2, 32, 4, 16), (1, 5, 3, 7), (1, 40, 1, 1), (3, 20, 50)]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_into_blocks_and_back(shape: tuple[int, ...], machine: Machine) -> None:
    plain = testing.random_array(shape, "float32")
    plain.flat[0], plain.flat[-1] = np.nan, -np.inf
    form = Blocked(machine.block, len(shape))
    blocked = form.arrange(plain)

    x = te.placeholder(shape, name="x")
    is_full = shape[1] % machine.block == 0
    family = "elementwise" if is_full else "relayout"
    found = run([x, arranging(shape, form)(x)], [plain], machine, family=family)
    np.testing.assert_array_equal(found, blocked)

    x = te.placeholder(blocked.shape, name="x")
    found = run([x, unblocking(shape)(x)], [blocked], machine, family="relayout")
    np.testing.assert_array_equal(found, plain)

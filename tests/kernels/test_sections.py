"""Kernels cut where they join or pad: no element asks where it is, and all are right."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from tests.kernels.contract import MACHINES
from tests.kernels.test_joined import MANY, run
from tvmfuse import testing
from tvmfuse._tvm import te, tirx, topi, tvm_ffi
from tvmfuse.kernels import families, sections
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.moves import _joining
from tvmfuse.passes.verify import is_one_kernel, kernel_facts

MACHINE = MACHINES["8 lanes"]


def questions(function: Any) -> int:
    """Return how many elements' values depend on where they are."""
    found: list[Any] = []

    def visit(node: Any) -> None:
        is_call = not isinstance(node, tirx.Select)
        if not is_call or str(getattr(node.op, "name", "")) == "prim.if_then_else":
            found.append(node)

    kinds = (tirx.Select, te.if_then_else(te.var("n") < 1, 0, 1).__class__)
    tvm_ffi.structural_walk(function.body, tuple((kind, visit) for kind in kinds))
    return len(found)


def tensors(*shapes: tuple[int, ...]) -> list[Any]:
    return [te.placeholder(shape, name=f"x{i}") for i, shape in enumerate(shapes)]


def joined(axis: int, *shapes: tuple[int, ...]) -> tuple[Any, Callable[..., Any]]:
    parts = tensors(*shapes)
    whole = topi.multiply(topi.concatenate(parts, axis=axis), 2.0)
    return te.create_prim_func([*parts, whole]), lambda *x: 2 * np.concatenate(x, axis)


def padded(shape: tuple[int, ...], widths: list[int]) -> tuple[Any, Callable[..., Any]]:
    (x,) = tensors(shape)
    out = topi.nn.pad(x, widths, widths[::-1], 1.5)
    pairs = list(zip(widths, widths[::-1], strict=True))
    return te.create_prim_func([x, out]), lambda x: np.pad(x, pairs, constant_values=1.5)


def blocked(*channels: int) -> tuple[Any, Callable[..., Any]]:
    parts = tensors(*((1, -(-c // 8), 3, 4, 8) for c in channels))
    out = _joining(channels, 8)(*parts)

    def reference(*arrays: Any) -> Any:
        plain = [a.transpose(0, 1, 4, 2, 3).reshape(1, -1, 3, 4) for a in arrays]
        whole = np.concatenate([p[:, :c] for p, c in zip(plain, channels, strict=True)], 1)
        missing = -whole.shape[1] % 8
        whole = np.pad(whole, ((0, 0), (0, missing), (0, 0), (0, 0)))
        return whole.reshape(1, -1, 8, 3, 4).transpose(0, 1, 3, 4, 2)

    return te.create_prim_func([*parts, out]), reference


CASES = {
    "joined along the rows": joined(1, (2, 3, 5), (2, 4, 5), (2, 1, 5)),
    "joined along the columns": joined(2, (6, 4, 24), (6, 4, 40)),
    "joined along the first axis, much of it": joined(0, (300, 64), (200, 64)),
    "padded along two axes": padded((4, 9, 11), [0, 1, 2]),
    "joined within blocks": blocked(12, 20),
    "joined within blocks, the last one not full": blocked(5, 3, 9),
}


@pytest.mark.parametrize("machine", [MACHINE, MANY], ids=["one core", "six cores"])
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_sections_are_one_kernel_right_and_ask_nothing(case: Any, machine: Machine) -> None:
    function, reference = case
    assert questions(function) > 0
    scheduled = families.schedule(function, machine)
    assert (scheduled.family, scheduled.note) == ("elementwise", "")
    assert is_one_kernel(kernel_facts(scheduled.function))
    assert questions(scheduled.function) == 0
    before, after = run(scheduled, function)
    testing.assert_close(after[-1], reference(*before[:-1]))


def test_many_parts_are_left_together() -> None:
    function, reference = joined(1, *[(3, 2)] * 40)
    assert len(sections.cut(function)) == 1
    before, after = run(families.schedule(function, MACHINE), function)
    testing.assert_close(after[-1], reference(*before[:-1]))


def test_what_asks_nothing_is_left_whole() -> None:
    (x,) = tensors((4, 8))
    function = te.create_prim_func([x, topi.nn.relu(x)])
    assert sections.cut(function) == [function]

"""A function of two branches that both reshape, compute and reshape back."""
# ruff: noqa: N805, N812  (as TVMScript is written)

from __future__ import annotations

from typing import Any

from tvm.script import ir as I
from tvm.script import relax as R


def module() -> Any:
    """Return it: ``x + x`` where the condition holds, else ``x * x``."""

    @I.ir_module
    class Branching:
        @R.function
        def main(x: R.Tensor((4, 6), "float32"), c: R.Tensor((), "bool")) -> R.Tensor(
            (4, 6), "float32"
        ):
            if c:
                a = R.reshape(x, (24,))
                b = R.add(a, a)
                r = R.reshape(b, (4, 6))
            else:
                a = R.reshape(x, (24,))
                b = R.multiply(a, a)
                r = R.reshape(b, (4, 6))
            return r

    return Branching

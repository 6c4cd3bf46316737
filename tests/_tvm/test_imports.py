from __future__ import annotations

import inspect
import subprocess
import sys

from tvmfuse._tvm.imports import _plain_stack


def here():
    return inspect.stack()


def test_plain_stack_holds_the_same_frames():
    usual = here()
    with _plain_stack():
        plain = here()
    assert [frame.frame.f_code for frame in plain[1:]] == [f.frame.f_code for f in usual[1:]]
    assert [frame.function for frame in plain] == [frame.function for frame in usual]
    assert plain[0].filename == __file__


def test_stack_is_the_usual_one_again_afterwards():
    usual = inspect.stack
    with _plain_stack():
        assert inspect.stack is not usual
    assert inspect.stack is usual


def test_intrinsics_are_registered_and_nothing_is_left_behind():
    code = """
import inspect
usual = inspect.stack
from tvmfuse._tvm.imports import import_tensor_intrinsics
import_tensor_intrinsics()
assert inspect.stack is usual
from tvm.s_tir import TensorIntrin
TensorIntrin.get("dot_4x4_i8i8s32_sdot")
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True)


def test_tvm_still_walks_the_whole_stack_for_every_function():
    """Without it the import would be quick by itself, and this file could go."""
    calls = []
    usual = inspect.stack

    def counting(context=1):
        calls.append(context)
        return usual(context)

    from tvm.script import tirx as T  # noqa: N812

    inspect.stack = counting
    try:

        @T.prim_func(s_tir=True)
        def copy(a: T.Buffer((4,), "float32"), b: T.Buffer((4,), "float32")) -> None:
            for i in range(4):
                with T.sblock("b"):
                    v = T.axis.spatial(4, i)
                    b[v] = a[v]

    finally:
        inspect.stack = usual
    assert calls

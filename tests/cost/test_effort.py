"""Kinds of work that take unlike times."""

from __future__ import annotations

import pytest

from tvmfuse.cost import kernel
from tvmfuse.plan import OpGraph, OpKind, OpNode, TensorInfo

N = 1 << 10


def one(name: str, kind: OpKind = "elementwise", dtype: str = "float32") -> OpGraph:
    tensors = (TensorInfo((N,), dtype), TensorInfo((N,), dtype))
    return OpGraph(tensors, (OpNode(name, kind, (0,), (1,), N, 0),), (0,), (1,))


@pytest.mark.parametrize(
    ("name", "work"),
    [("exp", "special"), ("log", "library"), ("sqrt", "division"), ("abs", "elementwise")],
)
def test_functions_differ_by_who_computes_them(name: str, work: str) -> None:
    (found,) = kernel.together(one(f"relax.{name}"))
    assert found.effort == {work: N}


def test_half_precision_is_rounded_after_every_operator() -> None:
    (found,) = kernel.together(one("relax.abs", dtype="float16"))
    assert found.effort == {"elementwise": N, "half": N}


@pytest.mark.parametrize(
    ("dtype", "out", "work"),
    [
        ("float32", "float32", "matmul"),
        ("float16", "float16", "half_matmul"),
        ("uint8", "int32", "byte_product"),
    ],
)
def test_products_differ_by_what_they_multiply(dtype: str, out: str, work: str) -> None:
    weight = TensorInfo((32, 64), dtype, is_constant=True)
    tensors = (TensorInfo((16, 32), dtype), weight, TensorInfo((16, 64), out))
    ops = (OpNode("relax.matmul", "matmul", (0, 1), (2,), 2 * 16 * 32 * 64, 0),)
    (found,) = kernel.together(OpGraph(tensors, ops, (0, 1), (2,)))
    assert found.effort[work] == 2 * 16 * 32 * 64


def test_product_reads_in_whatever_order() -> None:
    tensors = (
        TensorInfo((32, 16), "float32"),
        TensorInfo((16, 32), "float32"),
        TensorInfo((32, 64), "float32", is_constant=True),
        TensorInfo((16, 64), "float32"),
    )
    move = OpNode("relax.permute_dims", "injective", (0,), (1,), 16 * 32, 0)
    product = OpNode("relax.matmul", "matmul", (1, 2), (3,), 2 * 16 * 32 * 64, 1)
    (together,) = kernel.together(OpGraph(tensors, (move, product), (0, 2), (3,)))
    assert "moving" not in together.effort
    assert kernel.apart(OpGraph(tensors, (move, product), (0, 2), (3,)))[0].effort == {
        "moving": 16 * 32
    }


def test_what_a_reduction_keeps_beside_its_sums_is_work() -> None:
    image, sums = TensorInfo((N, 16), "float32"), TensorInfo((N,), "float32")
    ops = (
        OpNode("relax.add", "elementwise", (0,), (1,), 16 * N, 0),
        OpNode("relax.mean", "reduction", (1,), (2,), 16 * N, 1),
    )
    (sums_only,) = kernel.together(OpGraph((image, image, sums), ops, (0,), (2,)))
    (both,) = kernel.together(OpGraph((image, image, sums), ops, (0,), (1, 2)))
    assert "kept" not in sums_only.effort
    assert both.effort["kept"] == 16 * N

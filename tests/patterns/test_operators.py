"""The table of operators: kinds, families and counted work."""

import pytest

from tvmfuse._tvm import relax, tvm
from tvmfuse.patterns import operators


def tensor(*shape, dtype="float32"):
    return relax.Var("x", relax.TensorType(shape, dtype))


def normalised(call):
    return relax.BlockBuilder().normalize(call)


def test_every_listed_operator_exists_in_tvm():
    known = set(tvm.ir.Op.list_op_names())
    assert not set(operators._table()) - known


@pytest.mark.parametrize(
    ("call", "kind", "family"),
    [
        (relax.op.add(tensor(2, 3), tensor(2, 3)), "elementwise", "elementwise"),
        (relax.op.add(tensor(2, 3), tensor(3)), "broadcast", "elementwise"),
        (relax.op.add(tensor(2, 3), relax.const(1.0, "float32")), "broadcast", "elementwise"),
        (relax.op.nn.conv2d(tensor(1, 3, 4, 4), tensor(2, 3, 1, 1)), "conv", "conv2d"),
        (relax.op.nn.conv1d(tensor(1, 3, 4), tensor(2, 3, 1)), "conv", "opaque"),
        (relax.op.matmul(tensor(2, 3), tensor(3, 4)), "matmul", "matmul"),
        (relax.op.nn.softmax(tensor(2, 3)), "reduction", "reduction"),
        (relax.op.nn.max_pool2d(tensor(1, 3, 4, 4), (2, 2)), "pooling", "pooling"),
        (relax.op.permute_dims(tensor(2, 3)), "injective", "injective"),
        (relax.op.reshape(tensor(2, 3), (6,)), "view", "opaque"),
        (relax.op.unique(tensor(6)), "opaque", "opaque"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_kind_and_family(call, kind, family):
    call = normalised(call)
    assert operators.kind(call) == kind
    assert operators.family(call) == family


@pytest.mark.parametrize(
    ("call", "flops"),
    [
        (relax.op.add(tensor(2, 3), tensor(3)), 6),
        (relax.op.matmul(tensor(5, 2, 3), tensor(3, 4)), 2 * 5 * 2 * 3 * 4),
        (
            relax.op.nn.conv2d(tensor(1, 4, 8, 8), tensor(6, 2, 3, 3), padding=1, groups=2),
            2 * (6 * 8 * 8) * (2 * 3 * 3),
        ),
        (
            relax.op.nn.conv2d_transpose(tensor(1, 4, 8, 8), tensor(4, 3, 2, 2), groups=2),
            2 * (4 * 8 * 8) * (3 * 2 * 2),
        ),
        (relax.op.nn.max_pool2d(tensor(1, 3, 4, 4), (2, 2), strides=(2, 2)), 3 * 2 * 2 * 4),
        (relax.op.sum(tensor(4, 5), axis=[1]), 20),
        (relax.op.permute_dims(tensor(2, 3)), 0),
    ],
    ids=["add", "matmul", "grouped-conv", "transposed-conv", "pool", "sum", "transpose"],
)
def test_flops_count_a_multiply_add_as_two(call, flops):
    assert operators.flops(normalised(call)) == flops


def test_symbolic_extent_counts_as_one():
    n = tvm.tirx.Var("n", "int64")
    call = normalised(relax.op.matmul(tensor(n, 3), tensor(3, 4)))
    assert operators.flops(call) == 2 * 3 * 4


@pytest.mark.parametrize(
    ("call", "expected"),
    [
        (relax.op.exp(tensor(2)), True),
        (relax.op.concat([tensor(2), tensor(3)]), True),
        (relax.op.full((2,), relax.const(1.0, "float32")), True),
        (relax.op.split(tensor(4), 2), True),
        (relax.op.reshape(tensor(4), (2, 2)), False),
        (relax.op.shape_of(tensor(4)), False),
        (relax.op.unique(tensor(4)), False),
        (relax.op.print(tensor(4), format="{}"), False),
        (relax.op.exp(relax.Var("x", relax.TensorType(dtype="float32", ndim=2))), False),
        (tensor(2), False),
    ],
    ids=["exp", "concat", "full", "split", "view", "shape", "unique", "print", "unknown", "var"],
)
def test_only_pure_operators_on_known_shapes_become_kernels(call, expected):
    assert operators.is_groupable(normalised(call)) is expected

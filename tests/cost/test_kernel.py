from tvmfuse.cost import kernel
from tvmfuse.plan import OpGraph, OpNode, TensorInfo

N = 1 << 10


def test_fused_chain_touches_only_what_enters_and_leaves(chain):
    (fused,) = kernel.together(chain("elementwise", "elementwise", "elementwise", size=N))
    assert (fused.activation_bytes, fused.written_bytes) == (4 * N, 4 * N)
    assert fused.flops == {"elementwise": 3 * N}


def test_operators_apart_move_every_intermediate_twice(chain):
    apart = kernel.apart(chain("elementwise", "elementwise", "elementwise", size=N))
    assert len(apart) == 3
    assert sum(k.total_bytes for k in apart) == 6 * 4 * N


def test_view_is_no_kernel(chain):
    assert kernel.together(chain("view", "view")) == ()
    assert len(kernel.apart(chain("elementwise", "view", "elementwise"))) == 2


def test_operand_read_twice_counts_once():
    tensors = (TensorInfo((N,), "float32"), TensorInfo((N,), "float32"))
    graph = OpGraph(
        tensors, (OpNode("relax.multiply", "elementwise", (0, 0), (1,), N, 0),), (0,), (1,)
    )
    assert kernel.apart(graph)[0].activation_bytes == 4 * N


def test_constants_are_counted_apart_from_activations(matmul):
    (fused,) = kernel.together(matmul(8, 16, 32, epilogue=1))
    assert fused.activation_bytes == 4 * 8 * 32
    assert fused.constant_bytes == 4 * 32 * 16


def test_eight_byte_elements_cost_twice_the_operations(chain):
    (single,) = kernel.apart(chain("elementwise", size=N))
    (double,) = kernel.apart(chain("elementwise", size=N, dtype="float64"))
    assert double.total_flops == 2 * single.total_flops
    assert double.total_bytes == 2 * single.total_bytes


def test_value_read_by_stretched_operand_is_recomputed():
    tensors = tuple(TensorInfo((n,), "float32") for n in (N, N, N * 8, N * 8))
    ops = (
        OpNode("relax.exp", "elementwise", (0,), (1,), N, 0),
        OpNode("relax.add", "broadcast", (1, 2), (3,), 8 * N, 1),
    )
    (fused,) = kernel.together(OpGraph(tensors, ops, (0, 2), (3,)))
    assert fused.flops == {"elementwise": 8 * N, "broadcast": 8 * N}


def test_value_before_overlapping_pooling_window_is_recomputed():
    tensors = (
        TensorInfo((N,), "float32"),
        TensorInfo((N,), "float32"),
        TensorInfo((N,), "float32"),
    )
    ops = (
        OpNode("relax.exp", "elementwise", (0,), (1,), N, 0),
        OpNode("relax.nn.max_pool2d", "pooling", (1,), (2,), 9 * N, 1),
    )
    (fused,) = kernel.together(OpGraph(tensors, ops, (0,), (2,)))
    assert fused.flops["elementwise"] == 9 * N


def test_reduction_is_never_recomputed_by_its_readers():
    tensors = (
        TensorInfo((N, 8), "float32"),
        TensorInfo((N, 1), "float32"),
        TensorInfo((N, 8), "float32"),
    )
    ops = (
        OpNode("relax.sum", "reduction", (0,), (1,), 8 * N, 0),
        OpNode("relax.divide", "broadcast", (0, 1), (2,), 8 * N, 1),
    )
    (fused,) = kernel.together(OpGraph(tensors, ops, (0,), (2,)))
    assert fused.flops["reduction"] == 8 * N


def test_recompute_passes_through_views():
    tensors = tuple(TensorInfo((n,), "float32") for n in (N, N, N, 4 * N))
    ops = (
        OpNode("relax.exp", "elementwise", (0,), (1,), N, 0),
        OpNode("relax.reshape", "view", (1,), (2,), 0, 1),
        OpNode("relax.broadcast_to", "broadcast", (2,), (3,), 4 * N, 2),
    )
    (fused,) = kernel.together(OpGraph(tensors, ops, (0,), (3,)))
    assert fused.flops["elementwise"] == 4 * N


def test_empty_and_symbolic_tensors_are_counted():
    tensors = (TensorInfo((0, 3), "float32"), TensorInfo(("n", 0), "float32"))
    graph = OpGraph(tensors, (OpNode("relax.exp", "elementwise", (0,), (1,), 0, 0),), (0,), (1,))
    assert kernel.apart(graph)[0].total_bytes == 0


def test_padding_is_copied_once_for_all_windows_of_a_convolution() -> None:
    tensors = (
        TensorInfo((1, 8, 6, 6), "int8"),
        TensorInfo((1, 8, 8, 8), "int8"),
        TensorInfo((8, 1, 3, 3), "int8", is_constant=True),
        TensorInfo((1, 8, 6, 6), "int32"),
    )
    ops = (
        OpNode("relax.nn.pad", "injective", (0,), (1,), 8 * 8 * 8, 0),
        OpNode("relax.nn.conv2d", "conv", (1, 2), (3,), 2 * 9 * 8 * 6 * 6, 1),
    )
    (fused,) = kernel.together(OpGraph(tensors, ops, (0, 2), (3,)))
    apart = kernel.apart(OpGraph(tensors, ops, (0, 2), (3,)))
    assert fused.total_flops == sum(part.total_flops for part in apart)


def attention(heads: int, rows: int, keys: int, depth: int) -> OpGraph:
    tensors = tuple(
        TensorInfo((heads, *shape), "float32")
        for shape in (
            (rows, depth),
            (depth, keys),
            (keys, depth),
            (rows, keys),
            (rows, keys),
            (rows, depth),
        )
    )
    flops = 2 * heads * rows * keys * depth
    ops = (
        OpNode("relax.matmul", "matmul", (0, 1), (3,), flops, 0),
        OpNode("relax.exp", "elementwise", (3,), (4,), 10 * heads * rows * keys, 1),
        OpNode("relax.matmul", "matmul", (4, 2), (5,), flops, 2),
    )
    return OpGraph(tensors, ops, inputs=(0, 1, 2), outputs=(5,))


def test_attention_of_one_query_can_be_split_by_its_keys() -> None:
    (kept,) = kernel.together(attention(1, 1, 2048, 64), family="attention")
    assert kept.parallelism == 2048


def test_attention_repeats_nothing_between_its_products() -> None:
    rows, keys, depth = 128, 128, 64
    graph = attention(12, rows, keys, depth)
    (inlined,), (kept,) = kernel.together(graph), kernel.together(graph, family="attention")
    assert kept.flops["elementwise"] == 10 * 12 * rows * keys
    assert inlined.flops["elementwise"] > kept.flops["elementwise"]

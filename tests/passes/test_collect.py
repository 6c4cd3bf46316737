"""Candidates are legal, and whatever is refused keeps its reason."""

import pytest

from tvmfuse import testing
from tvmfuse._tvm import relax, tirx
from tvmfuse.passes.collect import collect
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.elementwise import Elementwise
from tvmfuse.patterns.recompute import Recompute
from tvmfuse.patterns.registry import Registry, default

SQUARE = Operand((4, 4))
IMAGE = Operand((1, 3, 6, 6))
WEIGHT = Operand((4, 3, 1, 1), is_constant=True)


def collected(graph, registry=None, dtype="float32", **operands):
    mod, _ = testing.build(Case("", operands), graph, dtype)
    return collect(mod, registry or default())


def labels(found):
    return {candidate.label for candidate in found.candidates}


class Proposal(Generator):
    """Proposes one set of bindings, whatever the function."""

    name = "proposal"

    def __init__(self, *bindings, is_multi_output=False):
        self.bindings = bindings
        self.is_multi_output = is_multi_output

    def find(self, flow, taken):
        yield Match(self.bindings, "elementwise")


class TestLegality:
    def refusal(self, graph, *bindings, is_multi_output=False, **operands):
        proposal = Proposal(*bindings, is_multi_output=is_multi_output)
        found = collected(graph, Registry((proposal,)), **operands)
        assert not found.candidates
        (rejection,) = found.rejections
        assert rejection.bindings == bindings
        assert rejection.stage == "collect"
        return rejection.reason

    def test_intermediate_that_another_operator_reads_leaks(self):
        def graph(op, x):
            y = op.matmul(x, x)
            return op.add(op.tanh(y), op.sum(y))

        assert self.refusal(graph, 0, 1, x=SQUARE) == "the intermediate lv is also read by lv2"

    def test_cheap_intermediate_that_another_operator_reads_is_copied(self):
        def graph(op, x):
            y = op.exp(op.negative(x))
            return op.add(op.tanh(y), op.sum(y))

        (found,) = collected(graph, Registry((Proposal(0, 1, 2),)), x=SQUARE).candidates
        assert (found.recomputes, found.provides) == ((0, 1), (2,))
        assert len(found.graph.outputs) == 1

    def test_copy_may_lead_out_and_back_for_others_get_the_value_elsewhere(self):
        def graph(op, x):
            mask = op.exp(x)
            return op.add(mask, op.sum(mask))

        found = collected(graph, Registry((Proposal(0, 2), Recompute())), x=SQUARE)
        assert [(c.bindings, c.recomputes) for c in found.candidates if 2 in c.bindings] == [
            ((0, 2), (0,))
        ]

    def test_nothing_is_copied_for_a_product_or_for_two_ends(self):
        def behind_a_product(op, x):
            y = op.exp(op.matmul(x, x))
            return op.add(op.tanh(y), op.sum(y))

        def two_ends(op, x):
            y = op.exp(x)
            return op.tanh(y), op.negative(y)

        assert "also read by" in self.refusal(behind_a_product, 0, 1, 2, x=SQUARE)
        assert "is an output" in self.refusal(two_ends, 0, 1, 2, x=SQUARE)

    def test_function_is_told_by_sizes_and_results(self):
        def graph(op, x):
            y = op.reshape(op.exp(x), (16,))
            return op.tanh(y)

        function = collected(graph, Registry(()), x=SQUARE).graphs["main"]
        assert (function.n_bytes, function.results) == ((64, 0, 64), (2,))

    def test_intermediate_that_is_returned_leaks(self):
        def graph(op, x):
            y = op.matmul(x, x)
            return op.tanh(y), y

        reason = self.refusal(graph, 0, 1, x=SQUARE)
        assert reason.endswith("is an output of the function")

    def test_leak_is_a_second_result_where_the_pattern_allows_it(self):
        def graph(op, x):
            y = op.exp(x)
            return op.tanh(y), y

        found = collected(graph, Registry((Proposal(0, 1, is_multi_output=True),)), x=SQUARE)
        (candidate,) = found.candidates
        assert len(candidate.graph.outputs) == 2

    def test_set_that_is_not_convex_is_refused(self):
        def graph(op, x):
            y = op.exp(x)
            return op.add(y, op.sum(y))

        reason = self.refusal(graph, 0, 2, is_multi_output=True, x=SQUARE)
        assert reason == "an operator between its parts depends on one and feeds another"

    def test_tuple_among_several_results_is_refused(self):
        def graph(op, x):
            y = op.exp(x)
            return op.concat(op.split(y, 2, axis=1), axis=0), y

        reason = self.refusal(graph, 0, 1, is_multi_output=True, x=SQUARE)
        assert reason == "one of its several results is a tuple"

    def test_operator_with_a_side_effect_is_refused(self):
        block = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4, 4), "float32"))
        with block.function("main", [x], pure=False):
            block.emit(relax.op.print(x, format="{}"))
            block.emit_func_output(block.emit(relax.op.exp(x)))
        found = collect(block.get(), Registry((Proposal(0, 1),)))
        assert "is not a pure operator" in found.rejections[0].reason

    def test_bindings_outside_a_dataflow_block_are_refused(self):
        block = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4, 4), "float32"))
        with block.function("main", [x]):
            y = block.emit(relax.op.exp(x))
            block.emit_func_output(block.emit(relax.op.tanh(y)))
        found = collect(block.get(), Registry((Proposal(0, 1),)))
        assert found.rejections[0].reason == "its operators lie outside a dataflow block"

    def test_bindings_of_two_blocks_are_refused(self):
        block = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4, 4), "float32"))
        with block.function("main", [x]):
            with block.dataflow():
                y = block.emit_output(relax.op.exp(x))
            z = block.match_cast(y, relax.TensorType((4, 4), "float32"))
            with block.dataflow():
                result = block.emit_output(relax.op.tanh(z))
            block.emit_func_output(result)
        found = collect(block.get(), Registry((Proposal(0, 2),)))
        assert found.rejections[0].reason == "its operators lie in different blocks"


class TestPatternsInUse:
    def test_second_of_two_patterns_does_not_repeat_the_first(self):
        def graph(op, x, weight):
            return op.nn.relu(op.nn.conv2d(x, weight))

        found = collected(graph, x=IMAGE, weight=WEIGHT)
        assert [c.pattern for c in found.candidates] == ["conv_bn_act"]
        assert not found.rejections

    def test_every_length_of_an_epilogue_is_a_candidate(self):
        def graph(op, x, weight):
            y = op.nn.conv2d(x, weight)
            for _ in range(3):
                y = op.exp(op.tanh(y))
            return y

        found = collected(graph, x=IMAGE, weight=WEIGHT)
        lengths = [len(c.bindings) for c in found.candidates if c.family == "conv2d"]
        assert sorted(lengths) == [2, 3, 4, 5, 6, 7]

    def test_residual_of_two_convolutions_may_join_either(self):
        def graph(op, x, weight):
            return op.nn.relu(op.add(op.nn.conv2d(x, weight), op.nn.conv2d(op.exp(x), weight)))

        found = collected(graph, x=IMAGE, weight=WEIGHT)
        with_sum = [c for c in found.candidates if c.label == "conv2d + add"]
        assert len(with_sum) == 2
        assert not set(with_sum[0].bindings[:1]) & set(with_sum[1].bindings[:1])

    def test_swapped_operands_match(self):
        def graph(op, x, weight, bias):
            return op.nn.relu(op.add(bias, op.nn.conv2d(x, weight)))

        bias = Operand((4, 1, 1), is_constant=True)
        found = collected(graph, x=IMAGE, weight=WEIGHT, bias=bias)
        assert "conv2d + add + relu" in labels(found)

    def test_sum_with_what_depends_on_the_convolution_is_no_candidate(self):
        def graph(op, x, weight):
            y = op.nn.conv2d(x, weight)
            return op.nn.relu(op.add(y, op.sum(y, axis=[1], keepdims=True)))

        for candidate in collected(graph, x=IMAGE, weight=WEIGHT).candidates:
            assert not {0, 2} <= set(candidate.bindings)

    def test_elementwise_leftovers_of_an_epilogue_are_offered_too(self):
        def graph(op, x, weight, y):
            z = op.nn.relu(op.nn.conv2d(x, weight))
            return op.exp(op.multiply(op.strided_slice(z, [1], [0], [1]), y)), z

        operands = {"x": IMAGE, "weight": WEIGHT, "y": Operand((1, 4, 6, 6))}
        assert "multiply + exp" in labels(collected(graph, **operands))

    def test_elementwise_sets_never_form_a_cycle(self):
        def graph(op, x):
            first = op.exp(x)
            total = op.sum(first)
            return op.tanh(op.add(first, total)), op.negative(first)

        found = collected(graph, Registry((Elementwise(),)), x=SQUARE)
        parts = [set(c.bindings) for c in found.candidates]
        assert parts
        assert not any({0, 2} <= part for part in parts)


class TestFaultyPattern:
    class Faulty(Generator):
        name = "faulty"

        def find(self, flow, taken):
            yield Match((0, 1), "elementwise")
            raise KeyError("surprise")

    def test_is_dropped_whole_and_named(self):
        def graph(op, x):
            return op.tanh(op.exp(x))

        registry = Registry((self.Faulty(), *default().patterns))
        found = collected(graph, registry, x=SQUARE)
        assert [c.pattern for c in found.candidates] == ["elementwise"]
        (rejection,) = found.rejections
        assert (rejection.pattern, rejection.bindings) == ("faulty", ())
        assert "KeyError" in rejection.reason

    def test_interrupt_is_not_swallowed(self):
        class Interrupted(Generator):
            name = "interrupted"

            def find(self, flow, taken):
                raise KeyboardInterrupt

        with pytest.raises(KeyboardInterrupt):
            collected(lambda op, x: op.exp(x), Registry((Interrupted(),)), x=SQUARE)


class TestGraphs:
    def test_candidate_describes_its_operators_as_plain_data(self):
        def graph(op, x, weight):
            return op.nn.relu(op.nn.conv2d(x, weight, padding=1))

        weight = Operand((4, 3, 3, 3), is_constant=True)
        (candidate,) = collected(graph, x=IMAGE, weight=weight).candidates
        conv, relu = candidate.graph.ops
        assert (conv.name, conv.kind) == ("relax.nn.conv2d", "conv")
        assert conv.flops == 2 * (4 * 6 * 6) * (3 * 3 * 3)
        assert relu.flops == 4 * 6 * 6
        tensors = candidate.graph.tensors
        assert [tensors[i].shape for i in candidate.graph.inputs] == [(1, 3, 6, 6), (4, 3, 3, 3)]
        assert [tensors[i].is_constant for i in candidate.graph.inputs] == [False, True]
        assert candidate.graph.outputs == relu.outputs

    def test_operand_that_is_read_twice_is_one_input(self):
        (candidate,) = collected(lambda op, x: op.exp(op.multiply(x, x)), x=SQUARE).candidates
        assert candidate.graph.inputs == (0,)
        assert candidate.graph.ops[0].inputs == (0, 0)

    def test_dependencies_are_by_position(self):
        def graph(op, x):
            y = op.exp(x)
            return op.add(y, op.tanh(y))

        found = collected(graph, x=SQUARE)
        assert found.graphs["main"].deps == ((), (0,), (0, 1))
        assert found.graphs["main"].ops == ("relax.exp", "relax.tanh", "relax.add")

    def test_symbolic_extent_is_named(self):
        block = relax.BlockBuilder()
        n = tirx.Var("n", "int64")
        x = relax.Var("x", relax.TensorType((n, 4), "float32"))
        with block.function("main", [x]):
            with block.dataflow():
                result = block.emit_output(relax.op.tanh(relax.op.exp(x)))
            block.emit_func_output(result)
        (candidate,) = collect(block.get(), default()).candidates
        assert candidate.graph.tensors[0].shape == ("n", 4)


def test_ten_thousand_operators_are_collected():
    def graph(op, x, weight, bias):
        for _ in range(2500):
            x = op.nn.gelu(op.add(op.add(op.matmul(x, weight), bias), x))
        return x

    operands = {"x": SQUARE, "weight": SQUARE, "bias": Operand((4,), is_constant=True)}
    found = collected(graph, **operands)
    assert len(found.graphs["main"].deps) == 10_000
    assert sum(c.label == "matmul + add + add + gelu" for c in found.candidates) == 2500


def test_only_the_gathered_rows_of_a_table_count_as_read():
    def graph(op, ids, table, gamma):
        return op.nn.rms_norm(op.take(table, ids, axis=0), gamma, axes=[-1])

    operands = {
        "ids": Operand((3,), dtype="int64", bounds=(0, 9)),
        "table": Operand((1000, 8), is_constant=True),
        "gamma": Operand((8,), is_constant=True),
    }
    mod, _ = testing.build(Case("", operands), graph, "float32")
    (candidate,) = collect(mod, default()).candidates
    sizes = {candidate.graph.tensors[i].shape for i in candidate.graph.inputs}
    assert sizes == {(3,), (3, 8), (8,)}

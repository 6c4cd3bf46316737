"""A plan becomes functions, one for each group, and the numbers stay."""
# ruff: noqa: N805  (a function of TVMScript has no self)

import pytest
from tvm.script import ir as I  # noqa: N812
from tvm.script import relax as R  # noqa: N812

from tvmfuse import testing
from tvmfuse._tvm import relax, tirx, tvm
from tvmfuse.errors import PlanMismatchError
from tvmfuse.passes.collect import collect
from tvmfuse.passes.partition import inline_group, partition
from tvmfuse.patterns.base import Case, Generator, Match, Operand
from tvmfuse.patterns.registry import Registry, default
from tvmfuse.plan import FusionPlan, Group, RunTime

SQUARE = Operand((4, 4))
IMAGE = Operand((1, 4, 6, 6))
WEIGHT = Operand((4, 4, 1, 1), is_constant=True)


class Proposals(Generator):
    """Proposes the sets of bindings that it is given."""

    name = "proposal"
    is_multi_output = True

    def __init__(self, *proposals):
        self.proposals = proposals

    def find(self, flow, taken):
        for bindings in self.proposals:
            yield Match(tuple(bindings), "elementwise")


def built(graph, **operands):
    return testing.build(Case("", operands), graph, "float32")


def plan_of(candidates):
    return FusionPlan(tuple(Group(candidate, RunTime(1.0, 2.0)) for candidate in candidates))


def proposed(mod, *proposals):
    """Return a plan of groups of these bindings."""
    candidates = collect(mod, Registry((Proposals(*proposals),))).candidates
    assert [c.bindings for c in candidates] == [tuple(p) for p in proposals]
    return plan_of(candidates)


def greedy(mod):
    """Return a plan of the largest candidates that do not overlap."""
    chosen, used = [], set()
    for candidate in sorted(collect(mod, default()).candidates, key=lambda c: -len(c.bindings)):
        if not used & set(candidate.bindings):
            chosen.append(candidate)
            used |= set(candidate.bindings)
    return plan_of(chosen)


def groups_of(mod):
    """Return the attributes of each group, by name."""
    return {
        var.name_hint: (
            str(f.attrs["tvmfuse.pattern"]),
            str(f.attrs["tvmfuse.family"]),
            [int(i) for i in f.attrs["tvmfuse.bindings"]],
        )
        for var, f in mod.functions.items()
        if "tvmfuse.pattern" in (f.attrs or {})
    }


def operators_left(mod):
    calls = (b.value for block in mod["main"].body.blocks for b in block.bindings)
    ops = (getattr(call, "op", None) for call in calls)
    return [op.name for op in ops if isinstance(op, tvm.ir.Op)]


def assert_same_numbers(before, after, inputs):
    relax.analysis.well_formed(after)
    expected = testing.run(testing.compile_plainly(before), inputs)
    actual = testing.run(testing.compile_plainly(after), inputs)
    for left, right in zip(expected, actual, strict=True):
        testing.assert_close(right, left)


def check(graph, *proposals, **operands):
    """Partition by ``proposals``, compare the numbers, return the module."""
    mod, values = built(graph, **operands)
    result = partition(mod, proposed(mod, *proposals))
    inputs = [values[str(param.name)] for param in mod["main"].params]
    assert_same_numbers(mod, result, inputs)
    return result


class Alone(Proposals):
    """Proposes sets of which each is to have one result."""

    is_multi_output = False


def _shared_exponential(op, x):
    y = op.exp(x)
    return op.tanh(y), op.sum(y, axis=[1])


def test_operator_that_every_reader_computes_itself_is_gone():
    mod, values = built(_shared_exponential, x=SQUARE)
    copying = collect(mod, Registry((Alone((0, 1), (0, 2)),))).candidates
    assert [c.recomputes for c in copying] == [(0,), (0,)]
    both = partition(mod, plan_of(copying))
    assert sorted(found[2] for found in groups_of(both).values()) == [[0, 1], [0, 2]]
    assert_same_numbers(mod, both, [values["x"]])
    one = partition(mod, plan_of(copying[:1]))
    assert sorted(found[2] for found in groups_of(one).values()) == [[0], [0, 1], [2]]
    assert_same_numbers(mod, one, [values["x"]])


def test_copy_of_what_reads_the_inside_of_a_group_is_refused():
    def graph(op, x):
        y = op.tanh(op.exp(x))
        return op.add(y, op.sum(y, axis=[1], keepdims=True)), op.negative(y)

    mod, _ = built(graph, x=SQUARE)
    inside = collect(mod, Registry((Proposals((0, 1)),))).candidates
    copying = collect(mod, Registry((Alone((1, 4)),))).candidates
    assert copying[0].recomputes == (1,)
    with pytest.raises(PlanMismatchError, match="once more"):
        partition(mod, plan_of([*inside, *copying]))


@I.ir_module
class Before:
    @R.function
    def main(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4,), "float32")):
        with R.dataflow():
            total = R.add(x, y)
            raised = R.exp(total)
            flat = R.reshape(raised, (16,))
            R.output(flat)
        return flat


@I.ir_module
class Expected:
    @R.function(private=True)
    def add_exp_0(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
        (4, 4), "float32"
    ):
        R.func_attr(
            {
                "Primitive": 1,
                "tvmfuse.bindings": [0, 1],
                "tvmfuse.family": "elementwise",
                "tvmfuse.pattern": "elementwise",
            }
        )
        with R.dataflow():
            total = R.add(x, y)
            raised = R.exp(total)
            R.output(raised)
        return raised

    @R.function
    def main(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4,), "float32")):
        cls = Expected
        with R.dataflow():
            raised = cls.add_exp_0(x, y)
            flat = R.reshape(raised, (16,))
            R.output(flat)
        return flat


@I.ir_module
class ExpectedApart:
    @R.function(private=True)
    def add_0(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4,), "float32")) -> R.Tensor(
        (4, 4), "float32"
    ):
        R.func_attr(
            {
                "Primitive": 1,
                "tvmfuse.bindings": [0],
                "tvmfuse.family": "elementwise",
                "tvmfuse.pattern": "single",
            }
        )
        with R.dataflow():
            total = R.add(x, y)
            R.output(total)
        return total

    @R.function(private=True)
    def exp_1(total: R.Tensor((4, 4), "float32")) -> R.Tensor((4, 4), "float32"):
        R.func_attr(
            {
                "Primitive": 1,
                "tvmfuse.bindings": [1],
                "tvmfuse.family": "elementwise",
                "tvmfuse.pattern": "single",
            }
        )
        with R.dataflow():
            raised = R.exp(total)
            R.output(raised)
        return raised

    @R.function
    def main(x: R.Tensor((4, 4), "float32"), y: R.Tensor((4,), "float32")):
        cls = ExpectedApart
        with R.dataflow():
            total = cls.add_0(x, y)
            raised = cls.exp_1(total)
            flat = R.reshape(raised, (16,))
            R.output(flat)
        return flat


class TestStructure:
    def test_group_is_one_private_function_and_views_stay_outside(self):
        tvm.ir.assert_structural_equal(partition(Before, greedy(Before)), Expected)

    def test_without_a_plan_every_operator_is_a_group_of_one(self):
        tvm.ir.assert_structural_equal(partition(Before, FusionPlan()), ExpectedApart)

    def test_inlined_group_is_groups_of_one(self):
        inlined = inline_group(partition(Before, greedy(Before)), "add_exp_0")
        tvm.ir.assert_structural_equal(inlined, ExpectedApart)

    def test_partitioned_module_has_nothing_left_to_partition(self):
        once = partition(Before, greedy(Before))
        tvm.ir.assert_structural_equal(partition(once, FusionPlan()), once)


class TestNumbers:
    def test_several_results_of_one_group(self):
        def graph(op, x, y):
            total = op.add(x, y)
            return op.nn.softmax(total, axis=-1), op.exp(total), total

        result = check(graph, (0, 2), x=SQUARE, y=SQUARE)
        assert groups_of(result)["add_exp_0"][2] == [0, 2]

    def test_value_that_is_returned_and_read_inside(self):
        def graph(op, x):
            y = op.exp(x)
            return op.tanh(y), y

        check(graph, (0, 1), x=SQUARE)

    def test_same_value_returned_twice(self):
        def graph(op, x):
            y = op.tanh(op.exp(x))
            return y, y

        check(graph, (0, 1), x=SQUARE)

    def test_group_moves_behind_what_it_reads(self):
        # Between the siblings lies a producer of the second one: it must come first.
        def graph(op, x, weight):
            first = op.matmul(x, weight)
            other = op.nn.softmax(x, axis=-1)
            second = op.matmul(other, weight)
            return op.add(first, second)

        result = check(graph, (0, 2), x=SQUARE, weight=SQUARE)
        calls = [b.value.op.name_hint for b in result["main"].body.blocks[0].bindings[:2]]
        assert calls == ["softmax_1", "matmul_matmul_0"]

    def test_constants_become_arguments_and_stay_shared(self):
        def graph(op, x, weight):
            return op.matmul(op.exp(op.matmul(x, weight)), weight)

        weight = Operand((4, 4), is_constant=True)
        result = check(graph, (0, 1), x=SQUARE, weight=weight)
        for name in groups_of(result):
            for block in result[name].body.blocks:
                for binding in block.bindings:
                    for arg in binding.value.args:
                        assert not isinstance(arg, tvm.ir.GenericConst)
        constants = [
            arg
            for block in result["main"].body.blocks
            for binding in block.bindings
            for arg in binding.value.args
            if isinstance(arg, tvm.ir.GenericConst)
        ]
        assert len(constants) == 2
        assert constants[0].same_as(constants[1])

    def test_constants_of_no_axes_in_any_operator(self):
        def graph(op, x):
            y = op.where(op.isnan(x), op.const(0.0), x)
            return op.add(op.multiply(y, op.const(2.0)), op.const(1.0))

        check(graph, (0, 1, 2, 3), x=SQUARE)

    def test_operand_read_twice_and_swapped(self):
        def graph(op, x, y):
            return op.subtract(op.multiply(x, x), op.divide(y, x))

        check(graph, (0, 1, 2), x=SQUARE, y=SQUARE)

    @pytest.mark.parametrize(
        ("after", "groups"),
        [
            (lambda op, y, z: (op.nn.relu(y), y), ["conv2d_0", "relu_1"]),
            (lambda op, y, z: op.multiply(op.nn.relu(y), y), ["conv2d_relu_multiply_0"]),
            (lambda op, y, z: op.nn.relu(op.add(y, z())), ["conv2d_1", "conv2d_add_relu_0"]),
            (lambda op, y, z: op.nn.relu(op.add(y, y)), ["conv2d_add_relu_0"]),
            (lambda op, y, z: op.nn.relu(op.add(y, op.sigmoid(y))), ["conv2d_sigmoid_add_relu_0"]),
            (lambda op, y, z: op.nn.relu(op.add(op.abs(y), y)), ["conv2d_abs_add_relu_0"]),
            (lambda op, y, z: op.add(y, op.sum(y)), ["conv2d_0", "sum_add_1"]),
        ],
        ids=["returned", "gate", "two", "twice", "sigmoid", "swapped", "through-a-sum"],
    )
    def test_convolution_read_more_than_once(self, after, groups):
        def graph(op, x, weight):
            def other():
                return op.nn.conv2d(x, weight, strides=(1, 1), padding=0, dilation=(1, 1))

            return after(op, op.nn.conv2d(x, weight), other)

        mod, values = built(graph, x=IMAGE, weight=WEIGHT)
        result = partition(mod, greedy(mod))
        assert_same_numbers(mod, result, [values["x"]])
        assert sorted(groups_of(result)) == groups

    def test_grouped_convolution_with_a_residual(self):
        def graph(op, x, weight, residual):
            return op.nn.relu(op.add(op.nn.conv2d(x, weight, groups=4), residual))

        weight = Operand((4, 1, 1, 1), is_constant=True)
        mod, values = built(graph, x=IMAGE, weight=weight, residual=IMAGE)
        result = partition(mod, greedy(mod))
        assert_same_numbers(mod, result, [values["x"], values["residual"]])
        assert len(groups_of(result)) == 1

    def test_results_that_are_tuples(self):
        def graph(op, x):
            parts = op.split(op.exp(x), 2, axis=1)
            return op.add(parts[0], parts[1])

        mod, values = built(graph, x=SQUARE)
        assert_same_numbers(mod, partition(mod, FusionPlan()), [values["x"]])

    def test_tuple_as_operand_is_handed_over_field_by_field(self):
        def graph(op, x):
            return op.concat(op.split(op.exp(x), 2, axis=1), axis=0)

        mod, values = built(graph, x=SQUARE)
        result = partition(mod, FusionPlan())
        assert_same_numbers(mod, result, [values["x"]])
        assert len(result["concat_2"].params) == 2
        assert_same_numbers(mod, inline_group(result, "concat_2"), [values["x"]])

    def test_every_way_to_cut_a_small_graph(self):
        def graph(op, x, weight):
            y = op.matmul(x, weight)
            gate = op.sigmoid(y)
            z = op.multiply(op.tanh(x), gate)
            return op.nn.softmax(op.add(z, y), axis=-1), gate

        for proposal in [(0, 1), (1, 3), (2, 3), (3, 4), (1, 2, 3, 4), (0, 1, 2, 3, 4, 5)]:
            check(graph, proposal, x=SQUARE, weight=SQUARE)


class TestSymbolicSizes:
    def module(self, graph, *shapes):
        block = relax.BlockBuilder()
        params = [
            relax.Var(f"x{i}", relax.TensorType(shape, "float32")) for i, shape in enumerate(shapes)
        ]
        with block.function("main", params):
            with block.dataflow():
                result = block.emit_output(graph(block, *params))
            block.emit_func_output(result)
        return relax.transform.CanonicalizeBindings()(block.get())

    def test_rows_of_any_number(self):
        n = tirx.Var("n", "int64")
        mod = self.module(lambda b, x: relax.op.tanh(b.emit(relax.op.exp(x))), (n, 4))
        result = partition(mod, greedy(mod))
        for rows in (1, 5):
            assert_same_numbers(mod, result, [testing.random_array((rows, 4), "float32")])

    def test_size_that_no_operand_of_the_group_gives_is_handed_over(self):
        n = tirx.Var("n", "int64")

        def graph(block, x, column):
            y = block.emit(relax.op.exp(x))
            ones = block.emit(relax.op.full((n * 8,), relax.const(2.0, "float32"), "float32"))
            z = block.emit(relax.op.multiply(y, ones))
            return relax.op.matmul(block.emit(relax.op.reshape(z, (8, n))), column)

        mod = self.module(graph, (n * 8,), (n, 1))
        result = partition(mod, proposed(mod, (0, 1, 2)))
        (name,) = (name for name, group in groups_of(result).items() if len(group[2]) == 3)
        assert isinstance(result[name].params[-1].ty, relax.ShapeType)
        for module in (result, inline_group(result, name)):
            for rows in (1, 5):
                inputs = [testing.random_array(s, "float32") for s in ((rows * 8,), (rows, 1))]
                assert_same_numbers(mod, module, inputs)


class TestPlanMismatch:
    def chain(self):
        return built(lambda op, x: op.tanh(op.exp(op.sum(op.abs(x)))), x=SQUARE)[0]

    def test_operator_of_another_module(self):
        plan = proposed(self.chain(), (2, 3))
        other, _ = built(lambda op, x: op.exp(op.tanh(op.sum(op.abs(x)))), x=SQUARE)
        with pytest.raises(
            PlanMismatchError, match=r"the plan has relax\.exp at binding 2 of main"
        ):
            partition(other, plan)

    def test_module_that_is_too_short(self):
        plan = proposed(self.chain(), (2, 3))
        with pytest.raises(PlanMismatchError, match="but the module has nothing there"):
            partition(built(lambda op, x: op.exp(x), x=SQUARE)[0], plan)

    def test_function_that_is_not_there(self):
        plan = proposed(self.chain(), (2, 3))
        block = relax.BlockBuilder()
        x = relax.Var("x", relax.TensorType((4, 4), "float32"))
        with block.function("other", [x]):
            block.emit_func_output(block.emit(relax.op.exp(x)))
        with pytest.raises(PlanMismatchError, match="'main'"):
            partition(block.get(), plan)

    def test_groups_that_overlap(self):
        mod = self.chain()
        with pytest.raises(PlanMismatchError, match="two of them hold binding 2"):
            partition(mod, proposed(mod, (1, 2), (2, 3)))

    def test_groups_that_are_cyclic_only_together(self):
        def crossed(op, x, y):
            first = op.exp(x)
            second = op.tanh(y)
            return op.abs(first), op.negative(second)

        mod, _ = built(crossed, x=SQUARE, y=SQUARE)
        with pytest.raises(PlanMismatchError, match="in a cycle"):
            # exp with negative, tanh with abs: each is convex, together they are cyclic.
            partition(mod, proposed(mod, (0, 3), (1, 2)))

    def test_group_to_inline_that_is_not_there(self):
        with pytest.raises(PlanMismatchError, match="'nobody'"):
            inline_group(partition(Before, FusionPlan()), "nobody")


class TestInline:
    def test_of_several_results_keeps_the_numbers(self):
        def graph(op, x, y):
            total = op.add(x, y)
            return op.nn.softmax(total, axis=-1), op.exp(total)

        mod, values = built(graph, x=SQUARE, y=SQUARE)
        inlined = inline_group(partition(mod, proposed(mod, (0, 2))), "add_exp_0")
        assert {name: group[2] for name, group in groups_of(inlined).items()} == {
            "softmax_1": [1],
            "add_0": [0],
            "exp_2": [2],
        }
        assert_same_numbers(mod, inlined, [values["x"], values["y"]])

    def test_leaves_other_groups_alone(self):
        mod, values = built(lambda op, x: op.tanh(op.exp(op.sum(op.abs(x)))), x=SQUARE)
        result = partition(mod, proposed(mod, (0, 1), (2, 3)))
        inlined = inline_group(result, "exp_tanh_2")
        assert set(groups_of(inlined)) == {"abs_sum_0", "exp_2", "tanh_3"}
        assert_same_numbers(mod, inlined, [values["x"]])


def test_names_stay_unique_when_taken():
    block = relax.BlockBuilder()
    x = relax.Var("x", relax.TensorType((4,), "float32"))
    with block.function("exp_0", [x]):
        with block.dataflow():
            result = block.emit_output(relax.op.exp(x))
        block.emit_func_output(result)
    assert set(groups_of(partition(block.get(), FusionPlan()))) == {"exp_0_1"}


def test_what_cannot_be_a_kernel_stays_outside():
    def graph(op, x):
        flat = op.reshape(x, (16,))
        return op.unique(flat)

    mod, _ = built(graph, x=SQUARE)
    assert operators_left(partition(mod, FusionPlan())) == ["relax.reshape", "relax.unique"]

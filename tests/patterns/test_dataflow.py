"""A function as a graph: who reads whom, what leaves a set, what is convex."""

from hypothesis import given, settings
from hypothesis import strategies as st

from tvmfuse import testing
from tvmfuse._tvm import relax, tirx, tvm
from tvmfuse._tvm.labels import with_label
from tvmfuse.patterns.base import Case, Operand
from tvmfuse.patterns.dataflow import Dataflow
from tvmfuse.patterns.elementwise import Elementwise

X = Operand((3, 4))


def flow_of(graph, **operands):
    mod, _ = testing.build(Case("", operands or {"x": X}), graph, "float32")
    return Dataflow.of("main", mod["main"])


def diamond(op, x):
    y = op.exp(x)
    return op.add(op.tanh(y), op.sum(y))


def test_readers_are_the_reverse_of_dependencies():
    flow = flow_of(diamond)
    assert flow.deps == ((), (0,), (0,), (1, 2))
    assert flow.users == ((1, 2), (3,), (3,), ())
    assert flow.escaping == {3}


def test_outputs_are_what_others_read():
    flow = flow_of(diamond)
    assert flow.outputs((0, 1)) == (0, 1)
    assert flow.outputs((1, 2, 3)) == (3,)


def test_what_lies_between_must_be_inside():
    flow = flow_of(diamond)
    assert not flow.is_convex((0, 3))
    assert not flow.is_convex((0, 1, 3))
    assert flow.is_convex((0, 1, 2, 3))
    assert flow.is_convex((1, 2))


def test_label_is_kept_with_the_call_else_it_is_the_variable():
    x = relax.Var("x", relax.TensorType((2,), "float32"))
    call = relax.op.exp(x)
    of_a_file = tvm.ir.Span(tvm.ir.SourceName("model.py"), 0, 0, 0, 0)
    block = relax.BlockBuilder()
    with block.function("main", [x]):
        named = block.emit(with_label(call, "/layer/Exp"))
        script = relax.Call(call.op, [named], span=of_a_file)
        block.emit_func_output(block.emit(script, name_hint="result"))
    flow = Dataflow.of("main", block.get()["main"])
    assert flow.labels == ("/layer/Exp", "result")


def test_binding_depends_on_the_cast_that_defines_its_size():
    n = tirx.Var("n", "int64")
    x = relax.Var("x", relax.TensorType(dtype="float32", ndim=1))
    block = relax.BlockBuilder()
    with block.function("main", [x]):
        with block.dataflow():
            cast = block.match_cast(x, relax.TensorType((n,), "float32"))
            zeros = block.emit(relax.op.zeros((n,), "float32"))
            result = block.emit_output(relax.op.add(cast, zeros))
        block.emit_func_output(result)
    flow = Dataflow.of("main", block.get()["main"])
    assert flow.deps[1] == (0,)


# A random graph as, for each operator, what it is and which earlier values it reads.
GRAPHS = st.lists(
    st.tuples(st.sampled_from(("add", "exp", "sum")), st.integers(0, 5), st.integers(0, 5)),
    min_size=2,
    max_size=12,
)


def random_flow(steps):
    def graph(op, x):
        values = [x]
        for operator, left, right in steps:
            a, b = values[left % len(values)], values[-1 - right % len(values)]
            if operator == "add":
                values.append(op.add(a, b))
            elif operator == "exp":
                values.append(op.exp(b))
            else:
                values.append(op.add(op.sum(a, axis=[0], keepdims=True), b))
        return values[-1]

    return flow_of(graph)


def reaches(flow, start, goals, avoiding):
    """Tell by brute force whether a path over outside bindings comes back."""
    stack, seen = [u for u in flow.users[start] if u not in avoiding], set()
    while stack:
        node = stack.pop()
        if node in seen:
            continue
        seen.add(node)
        for user in flow.users[node]:
            if user in goals:
                return True
            if user not in avoiding:
                stack.append(user)
    return False


@settings(deadline=None)
@given(steps=GRAPHS, data=st.data())
def test_sweep_agrees_with_searching_every_path(steps, data):
    flow = random_flow(steps)
    positions = range(len(flow.bindings))
    members = data.draw(st.sets(st.sampled_from(positions), min_size=1))
    expected = not any(reaches(flow, m, members, members) for m in members)
    assert flow.is_convex(members) is expected


@given(steps=GRAPHS)
def test_elementwise_sets_are_convex_and_their_results_have_one_shape(steps):
    flow = random_flow(steps)
    for match in Elementwise().find(flow, frozenset()):
        assert flow.is_convex(match.bindings)
        shapes = {str(flow.var(i).ty.shape) for i in flow.outputs(match.bindings)}
        assert len(shapes) <= 1  # none where nobody reads the result

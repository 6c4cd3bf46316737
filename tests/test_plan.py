"""Plans survive JSON unchanged, and data counts what it says."""

import json

from hypothesis import given
from hypothesis import strategies as st

from tvmfuse.plan import (
    Candidate,
    FusionPlan,
    Group,
    OpGraph,
    OpNode,
    Rejection,
    RunTime,
    TensorInfo,
)

names = st.text(min_size=1, max_size=12)
positions = st.lists(st.integers(0, 10_000), min_size=1, max_size=4).map(tuple)
indices = st.lists(st.integers(0, 50), max_size=4).map(tuple)
times = st.builds(RunTime, st.floats(0, 1e9), st.floats(0, 1e9))
tensors = st.builds(
    TensorInfo,
    shape=st.lists(st.integers(0, 1 << 20) | names, max_size=4).map(tuple),
    dtype=st.sampled_from(["float32", "float16", "int8", "bool", "float8_e4m3fn"]),
    is_constant=st.booleans(),
)
kinds = st.sampled_from(["elementwise", "reduction", "matmul", "view", "opaque"])
ops = st.builds(
    OpNode, names, kinds, indices, indices, st.integers(0, 1 << 50), st.integers(0, 99), names
)
graphs = st.builds(
    OpGraph,
    st.lists(tensors, max_size=3).map(tuple),
    st.lists(ops, max_size=3).map(tuple),
    indices,
    indices,
)
candidates = st.builds(Candidate, names, names, names, positions, graphs)
plans = st.builds(
    FusionPlan,
    groups=st.lists(st.builds(Group, candidates, times), max_size=3).map(tuple),
    rejections=st.lists(
        st.builds(
            Rejection, names, names, positions, st.sampled_from(["collect", "plan", "lower"]), names
        ),
        max_size=3,
    ).map(tuple),
)


@given(plans)
def test_plan_survives_json(plan):
    assert FusionPlan.from_json(json.loads(json.dumps(plan.to_json()))) == plan


def test_plan_says_which_schema_it_is_written_in():
    assert FusionPlan().to_json()["schema"] == 1


@given(plans)
def test_plan_saves_what_its_groups_save(plan):
    assert plan.saved_us == sum(g.time.unfused_us - g.time.fused_us for g in plan.groups)


def test_symbolic_extent_counts_as_one():
    assert TensorInfo(("n", 3, 4), "float16").n_bytes == 24


def test_scalar_has_one_element():
    assert TensorInfo((), "int64").n_bytes == 8


def test_label_names_the_operators_in_order():
    nodes = (
        OpNode("relax.nn.conv2d", "conv", (0,), (1,), 9, 0),
        OpNode("relax.add", "elementwise", (1,), (2,), 1, 1),
    )
    graph = OpGraph((), nodes, (0,), (2,))
    assert Candidate("p", "f", "main", (0, 1), graph).label == "conv2d + add"

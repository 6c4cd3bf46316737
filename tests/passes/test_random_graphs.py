"""Whatever graph comes, canonical, fused and plain give the same numbers."""

from typing import NamedTuple

from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tvmfuse import testing
from tvmfuse._tvm import relax, tvm_ffi
from tvmfuse.errors import PlanMismatchError
from tvmfuse.passes.canonicalise import canonicalise
from tvmfuse.passes.collect import collect
from tvmfuse.passes.partition import inline_group, partition
from tvmfuse.patterns.base import Case, Operand
from tvmfuse.patterns.registry import default
from tvmfuse.plan import FusionPlan, Group, RunTime

# Every operator keeps values near one, so that rounding stays rounding.
UNARY = ("tanh", "sigmoid", "nn.relu", "negative", "nn.softmax", "reshape", "abs", "transpose")
BINARY = ("add", "multiply", "subtract", "maximum", "matmul", "where")
CONSTANTS = ("scalar", "row", "weight")


class Step(NamedTuple):
    """One operator of a random graph; operands count back from the newest value."""

    operator: str
    left: int
    right: int | str


STEPS = st.lists(
    st.builds(
        Step,
        st.sampled_from(UNARY + BINARY),
        st.sampled_from((0, 0, 0, 1, 2)),
        st.sampled_from((*CONSTANTS, 0, 1, 2)),
    ),
    min_size=3,
    max_size=12,
)


def applied(op, step, values, constants):
    left = values[-1 - step.left % len(values)]
    right = constants.get(step.right)
    if right is None:
        right = values[-1 - step.right % len(values)]
    if step.operator in ("add", "multiply", "subtract", "maximum"):
        return getattr(op, step.operator)(left, right)
    if step.operator == "matmul":
        scale = op.const(0.3)
        return op.multiply(op.matmul(left, constants["weight"]), scale)
    if step.operator == "where":
        return op.where(op.greater(left, op.const(0.0)), right, left)
    if step.operator == "reshape":
        return op.reshape(op.reshape(left, (16,)), (4, 4))
    if step.operator == "transpose":
        return op.permute_dims(left)
    if step.operator.startswith("nn."):
        return getattr(op.nn, step.operator.removeprefix("nn."))(left)
    return getattr(op, step.operator)(left)


def built(steps, outputs):
    def graph(op, x, weight, row):
        constants = {"scalar": op.const(0.7), "row": row, "weight": weight}
        values = [x]
        for step in steps:
            values.append(applied(op, step, values, constants))
        return tuple(values[-1 - i] for i in range(min(outputs, len(values))))

    operands = {
        "x": Operand((4, 4)),
        "weight": Operand((4, 4), is_constant=True, spread=0.5),
        "row": Operand((4,), is_constant=True),
    }
    return testing.build(Case("", operands), graph, "float32")


def partitioned(mod, data):
    """Partition by random candidates, leaving out those that overlap or form a cycle."""
    groups, used = [], set()
    result = partition(mod, FusionPlan())
    candidates = collect(mod, default()).candidates
    for candidate in data.draw(st.permutations(candidates)):
        if used & set(candidate.provides):
            continue
        plan = FusionPlan((*groups, Group(candidate, RunTime(1.0, 2.0))))
        try:
            result = partition(mod, plan)
        except PlanMismatchError:
            continue
        groups = list(plan.groups)
        used |= set(candidate.provides)
    return result


@settings(
    max_examples=20,
    deadline=None,
    # Explaining a failure takes minutes here: each try compiles.
    phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink],
    suppress_health_check=[HealthCheck.too_slow],
)
@given(steps=STEPS, outputs=st.integers(1, 3), data=st.data())
def test_numbers_are_kept_by_every_pass(steps, outputs, data):
    mod, values = built(steps, outputs)
    canonical = canonicalise(mod)
    assert tvm_ffi.structural_equal(canonicalise(canonical), canonical)
    fused = partitioned(canonical, data)
    relax.analysis.well_formed(fused)
    names = [
        var.name_hint
        for var, function in fused.functions.items()
        if "tvmfuse.pattern" in (function.attrs or {})
    ]
    modules = [fused]
    if names:
        modules.append(inline_group(fused, data.draw(st.sampled_from(names))))
    expected = testing.run(testing.compile_plainly(mod), [values["x"]])
    for module in modules:
        actual = testing.run(testing.compile_plainly(module), [values["x"]])
        for left, right in zip(actual, expected, strict=True):
            testing.assert_close(left, right)

"""Every pattern, every case, every dtype: found, fused and right."""

import pytest

from tvmfuse import testing
from tvmfuse._pipeline import Options, pipeline, prepare
from tvmfuse._tvm import tvm
from tvmfuse.passes.verify import is_one_kernel, kernel_facts
from tvmfuse.patterns.base import Case, Operand, Pattern
from tvmfuse.patterns.registry import Registry, builtin
from tvmfuse.plan import RunTime
from tvmfuse.targets import resolve

PATTERNS = builtin().patterns
DTYPES = ("float32", "float16")

CASES = [
    pytest.param(pattern, case, id=f"{pattern.name}-{case.name}")
    for pattern in PATTERNS
    for case in pattern.cases
]
NEAR_MISSES = [
    pytest.param(pattern, case, id=f"{pattern.name}-{case.name}")
    for pattern in PATTERNS
    for case in pattern.near_misses
]


@pytest.fixture(scope="module")
def target():
    return resolve("cpu")


class AlwaysFuse:
    """A cost model under which every candidate is worth it, the larger the more."""

    def predict(self, candidate):
        return RunTime(fused_us=1.0, unfused_us=1.0 + len(candidate.bindings))


@pytest.mark.parametrize(("pattern", "case"), CASES)
def test_case_matches_once_and_fused_equals_numpy(pattern, case):
    testing.check_case(pattern, case, "float32")


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("pattern", "case"), CASES)
def test_case_is_right_by_the_kernels_of_the_pipeline(pattern, case, dtype, target):
    mod, values = testing.build(case, testing.graph_of(pattern, case), dtype)
    options = Options(registry=Registry((pattern,)), cost_model=AlwaysFuse())
    stages = pipeline(target, options=options)
    executable = tvm.compile(mod, target.tvm(), relax_pipeline=stages)
    testing.check_numbers(pattern, case, values, executable=executable)


@pytest.mark.parametrize(("pattern", "case"), CASES)
def test_case_becomes_one_kernel(pattern, case, target):
    mod, _ = testing.build(case, testing.graph_of(pattern, case), "float32")
    options = Options(registry=Registry((pattern,)), cost_model=AlwaysFuse())
    kernels = prepare(mod, target, options=options).schedules.kernels
    for name, kernel in kernels.items():
        assert is_one_kernel(kernel_facts(kernel.function)), f"{name}: {kernel.note}"


@pytest.mark.parametrize(("pattern", "case"), NEAR_MISSES)
def test_near_miss_is_refused(pattern, case):
    testing.check_near_miss(pattern, case)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_pattern_has_cases_and_near_misses(pattern):
    assert pattern.cases
    assert pattern.near_misses


NAMED = [pattern for pattern in PATTERNS if isinstance(pattern, Pattern)]


# Shapes that fit every variant of a pattern: a square weight may be transposed.
SQUARE = {
    "x": Operand((2, 4, 7)),
    "weight": Operand((7, 7), is_constant=True),
    "scale": Operand((), is_constant=True),
    "bias": Operand((7,), is_constant=True),
    "residual": Operand((2, 4, 7)),
}


@pytest.mark.parametrize("pattern", NAMED, ids=lambda pattern: pattern.name)
def test_every_variant_matches_its_own_graph_once(pattern):
    plain = [case for case in pattern.cases if case.graph is None]
    operands = SQUARE if pattern.name == "matmul_bias_act" else plain[0].operands
    for options in pattern.options():
        case = Case("variant", operands, {**plain[0].options, **options})
        mod, _ = testing.build(case, pattern.graph, "float32")
        assert len(testing.covers_of_everything(pattern, mod)) == 1, dict(options)

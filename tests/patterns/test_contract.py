"""Every pattern, every case, every dtype: found, fused and right."""

import pytest

from tvmfuse import testing
from tvmfuse.patterns.registry import default

PATTERNS = default().patterns
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


@pytest.fixture
def compile_module():
    """Compile a partitioned module; the one place to plug another pipeline in."""
    return testing.compile_plainly


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize(("pattern", "case"), CASES)
def test_case_matches_once_and_fused_equals_numpy(pattern, case, dtype, compile_module):
    testing.check_case(pattern, case, dtype, compile_module=compile_module)


@pytest.mark.parametrize(("pattern", "case"), NEAR_MISSES)
def test_near_miss_is_refused(pattern, case):
    testing.check_near_miss(pattern, case)


@pytest.mark.parametrize("pattern", PATTERNS, ids=lambda pattern: pattern.name)
def test_pattern_has_cases_and_near_misses(pattern):
    assert pattern.cases
    assert pattern.near_misses

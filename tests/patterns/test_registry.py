"""The patterns in use are a value."""

import pytest

from tvmfuse.errors import PatternError
from tvmfuse.patterns.registry import Registry, default
from tvmfuse.patterns.softmax import Softmax


def test_named_patterns_come_before_generic_ones():
    names = [pattern.name for pattern in default().patterns]
    assert names.index("conv_bn_act") < names.index("epilogue") < names.index("elementwise")


def test_added_pattern_comes_first_and_leaves_the_original_alone():
    original = Registry()
    added = original.with_pattern(Softmax())
    assert [pattern.name for pattern in added.patterns] == ["softmax"]
    assert original.patterns == ()


def test_two_patterns_of_one_name_are_refused():
    with pytest.raises(PatternError, match="found 'softmax' twice"):
        Registry((Softmax(), Softmax()))

from __future__ import annotations

import pytest

from tvmfuse.tolerance import TOLERANCES, coarsest, of_model


@pytest.mark.parametrize(
    ("dtypes", "found"),
    [
        (["float32", "float16", "int64"], "float16"),
        (["float16", "bfloat16"], "bfloat16"),
        (["float64", "float32"], "float32"),
        (["int8", "bool"], ""),
        ([], ""),
    ],
)
def test_the_type_that_rounds_most_counts(dtypes: list[str], found: str) -> None:
    assert coarsest(dtypes) == found


def test_integers_are_exact_and_a_model_may_be_off_by_no_less_than_a_kernel() -> None:
    assert of_model("") == 0.0
    assert all(each.model >= each.kernel for each in TOLERANCES.values())


def test_a_coarser_type_may_be_off_by_more() -> None:
    models = [each.model for each in TOLERANCES.values()]
    assert models == sorted(models, reverse=True)
    assert (of_model("float16"), of_model("float32")) == (1e-2, 1e-3)

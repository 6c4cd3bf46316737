"""A form arranges the same values in the shape that it states."""

from __future__ import annotations

import numpy as np
import pytest

from tvmfuse import testing
from tvmfuse.passes.layout.forms import (
    Blocked,
    ConvWeight,
    DepthwiseWeight,
    Form,
    Panels,
    Plain,
    Trailing,
)


class TestForms:
    @pytest.mark.parametrize(
        ("form", "shape"),
        [
            (Plain(), (2, 3)),
            (Blocked(8), (2, 20, 3, 5)),
            (Blocked(8), (20, 1, 1)),
            (Blocked(8, rank=3), (2, 20, 5)),
            (Blocked(8, rank=3), (20, 1)),
            (Trailing(), (2, 3, 4, 5)),
            (Trailing(3), (3, 5)),
            (ConvWeight(8, 16), (20, 9, 3, 2)),
            (ConvWeight(1, 8), (20, 3, 3)),
            (DepthwiseWeight(8), (20, 1, 3, 2)),
            (DepthwiseWeight(8), (20, 1, 3)),
            (Panels(16), (7, 33)),
            (Panels(16), (1, 1, 7, 33)),
        ],
    )
    def test_an_arranged_array_has_the_stated_shape_and_the_same_values(
        self, form: Form, shape: tuple[int, ...]
    ) -> None:
        array = testing.random_array(shape, "float32")
        arranged = form.arrange(array)
        assert arranged.shape == form.shape(shape)
        assert arranged.flags.c_contiguous
        assert arranged.dtype == np.float32
        np.testing.assert_array_equal(
            np.sort(arranged[arranged != 0], axis=None), np.sort(array, axis=None)
        )

    def test_blocks_hold_neighbouring_channels(self) -> None:
        array = np.arange(2 * 16 * 3 * 5, dtype="float32").reshape(2, 16, 3, 5)
        blocked = Blocked(8).arrange(array)
        assert blocked[1, 1, 2, 4, 3] == array[1, 8 + 3, 2, 4]

    def test_packed_weights_hold_neighbouring_output_channels(self) -> None:
        array = np.arange(16 * 8 * 3 * 2, dtype="float32").reshape(16, 8, 3, 2)
        packed = ConvWeight(4, 8).arrange(array)
        assert packed[1, 1, 2, 1, 3, 5] == array[8 + 5, 4 + 3, 2, 1]

"""What only moves elements works on blocks, wherever a part of the channels ends."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from tests.passes.layout.steps import IMAGE, assert_same_numbers, conv, op, steps
from tvmfuse._tvm import relax


@pytest.mark.parametrize("channels", [(12, 16), (4, 8, 24), (5, 3), (20, 1, 7)])
def test_joining_channels_wherever_a_part_ends(channels: Sequence[int]) -> None:
    def graph(x: Any) -> Any:
        parts = [conv(x, count, seed=i) for i, count in enumerate(channels)]
        return conv(op.concat(parts, axis=1), 8, channels=sum(channels), seed=9)

    assert steps(graph, IMAGE).count("from_blocked") == 1
    assert_same_numbers(graph, IMAGE)


def test_joining_along_the_width() -> None:
    def graph(x: Any) -> Any:
        return op.concat([conv(x, 12), conv(x, 12, seed=2)], axis=3)

    assert steps(graph, IMAGE)[-2:] == ["concat", "from_blocked"]
    assert_same_numbers(graph, IMAGE)


@pytest.mark.parametrize(("begin", "end"), [(16, 40), (4, 20), (0, 7), (17, 25), (24, 38)])
def test_taking_channels(begin: int, end: int) -> None:
    def graph(x: Any) -> Any:
        y = op.strided_slice(conv(x, 40), [1], [begin], [end])
        return conv(y, 8, channels=end - begin, seed=2)

    assert steps(graph, IMAGE).count("from_blocked") == 1
    assert_same_numbers(graph, IMAGE)


def test_taking_every_second_pixel() -> None:
    def graph(x: Any) -> Any:
        return op.strided_slice(conv(x, 12), [2, 3], [1, 0], [6, -1], [2, 3])

    assert steps(graph, IMAGE)[-2:] == ["strided_slice", "from_blocked"]
    assert_same_numbers(graph, IMAGE)


@pytest.mark.parametrize("method", ["nearest_neighbor", "linear"])
def test_resizing(method: str) -> None:
    def graph(x: Any) -> Any:
        return op.image.resize2d(conv(x, 12), relax.ShapeExpr([12, 9]), method=method)

    assert steps(graph, IMAGE)[-2:] == ["resize2d", "from_blocked"]
    assert_same_numbers(graph, IMAGE)

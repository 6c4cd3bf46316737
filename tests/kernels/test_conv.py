"""Blocked convolutions agree with NumPy for any geometry and on any machine."""

from __future__ import annotations

from typing import Any

import pytest

from tests.kernels.contract import MACHINES, Case, check, scaled_residual_relu
from tvmfuse.kernels import conv
from tvmfuse.kernels.image import Window
from tvmfuse.kernels.tiling import Machine
from tvmfuse.passes.layout.forms import Blocked, ConvWeight, Trailing
from tvmfuse.patterns.references import conv2d


def convolution(
    name: str,
    image: tuple[int, int, int, int],
    filters: int,
    window: Window,
    *,
    groups: int = 1,
    is_first: bool = False,
) -> Case:
    """Return a convolution over blocks, or over a few single channels (``is_first``)."""

    def emit(machine: Machine, x: Any, weight: Any) -> Any:
        return conv.emit(x, weight, window, machine, groups=groups)

    def reference(x: Any, weight: Any) -> Any:
        return conv2d(
            x,
            weight,
            strides=window.strides,
            padding=window.padding,
            dilation=window.dilation,
            groups=groups,
        )

    def forms(machine: Machine) -> tuple[Any, ...]:
        block = machine.block
        source = Trailing() if is_first else Blocked(block)
        return source, ConvWeight(1 if is_first else block, block)

    weight = (filters, image[1] // groups, *window.kernel)
    return Case(name, (image, weight), emit, reference, forms, is_blocked=True)


ALL_AROUND = (1, 1, 1, 1)

CASES = [
    convolution("3 x 3", (1, 16, 13, 17), 32, Window((3, 3), padding=ALL_AROUND)),
    convolution("3 x 3, no padding", (1, 16, 8, 9), 16, Window((3, 3))),
    convolution("3 x 3, stride 2", (1, 16, 13, 12), 16, Window((3, 3), (2, 2), ALL_AROUND)),
    convolution("1 x 1", (1, 32, 9, 5), 64, Window((1, 1))),
    convolution("1 x 1, batch 2", (2, 16, 7, 7), 32, Window((1, 1))),
    convolution("1 x 1, stride 2", (1, 16, 7, 9), 16, Window((1, 1), (2, 2))),
    convolution("1 x 1 with padding", (1, 16, 4, 5), 16, Window((1, 1), padding=(1, 0, 0, 2))),
    convolution("1 x 1 over one pixel", (1, 32, 1, 1), 48, Window((1, 1))),
    convolution("3 x 3 over one pixel", (1, 16, 1, 1), 16, Window((3, 3), padding=ALL_AROUND)),
    convolution("wider than the image", (1, 16, 2, 3), 16, Window((5, 7), padding=(2, 3, 2, 3))),
    convolution(
        "first layer, 7 x 7",
        (1, 3, 23, 21),
        32,
        Window((7, 7), (2, 2), (3, 3, 3, 3)),
        is_first=True,
    ),
    convolution("first layer, batch 3", (3, 2, 6, 5), 16, Window((3, 3)), is_first=True),
    convolution("5 x 5, dilation 2", (1, 16, 14, 13), 16, Window((5, 5), dilation=(2, 2))),
    convolution(
        "all unlike along the axes",
        (2, 16, 15, 11),
        16,
        Window((1, 3), (2, 1), (0, 2, 1, 0), (1, 2)),
    ),
    convolution(
        "asymmetric padding", (1, 16, 6, 7), 16, Window((3, 3), (2, 2), padding=(0, 1, 2, 0))
    ),
    convolution("2 groups", (1, 64, 7, 5), 64, Window((3, 3), padding=ALL_AROUND), groups=2),
    convolution("2 groups, 1 x 1", (1, 32, 5, 5), 64, Window((1, 1)), groups=2),
    convolution("blocks not full", (1, 20, 5, 6), 28, Window((3, 3), padding=ALL_AROUND)),
    convolution("1 x 1, blocks not full", (1, 9, 3, 5), 5, Window((1, 1))),
    convolution("many tasks", (2, 32, 20, 20), 96, Window((3, 3), padding=ALL_AROUND)),
]


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_convolution_with_an_epilogue_equals_numpy(case: Case, machine: Machine) -> None:
    check(case, machine, "conv", epilogue=scaled_residual_relu(1))


@pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)
@pytest.mark.parametrize("case", [CASES[0], CASES[3]], ids=lambda case: case.name)
def test_convolution_alone_equals_numpy(case: Case, machine: Machine) -> None:
    check(case, machine, "conv")


@pytest.mark.parametrize(
    ("window", "size"),
    [
        (Window((3, 3), padding=ALL_AROUND), (5, 7)),
        (Window((3, 3), (2, 2)), (2, 3)),
        (Window((2, 3), (1, 2), (0, 1, 0, 1), (3, 2)), (2, 2)),
    ],
)
def test_span_is_the_smallest_image_that_gives_so_many_results(
    window: Window, size: tuple[int, int]
) -> None:
    unpadded = Window(window.kernel, window.strides, dilation=window.dilation)
    height, width = window.span(*size)
    assert unpadded.out(height, width) == size
    assert unpadded.out(height - 1, width)[0] == size[0] - 1
    assert unpadded.out(height, width - 1)[1] == size[1] - 1

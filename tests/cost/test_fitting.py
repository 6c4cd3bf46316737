"""The roofline's rates, fitted to made-up measurements."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tests.cost.measured import PEAKS, graphs
from tvmfuse.cost import fitting, kernel
from tvmfuse.cost.rates import Rates
from tvmfuse.cost.roofline import Roofline

KERNELS = [kernel.together(graph) for _, graph in graphs()]
TRUE = replace(
    Rates(),
    efficiency={**Rates().efficiency, "special": 0.05, "matmul": 0.4},
    call_us=0.8,
    wake=3.0,
)


def times(rates: Rates) -> list[float]:
    roofline = Roofline(PEAKS, rates)
    return [sum(map(roofline.kernel_us, parts)) for parts in KERNELS]


def test_table_computes_what_the_roofline_does() -> None:
    numbers = np.array(TRUE.numbers())
    assert fitting.Table(PEAKS, KERNELS).us(numbers) == pytest.approx(times(TRUE))


def test_rates_are_found_again_from_what_they_cause() -> None:
    found = fitting.fit(PEAKS, KERNELS, times(TRUE))
    assert found.call_us == pytest.approx(TRUE.call_us, rel=0.1)
    assert found.wake == pytest.approx(TRUE.wake, rel=0.1)
    assert found.efficiency["special"] == pytest.approx(TRUE.efficiency["special"], rel=0.1)
    assert found.efficiency["conv"] == pytest.approx(Rates().efficiency["conv"])  # of none


def test_few_disturbed_measurements_change_little() -> None:
    disturbed = [us * (20.0 if i % 25 == 0 else 1.0) for i, us in enumerate(times(TRUE))]
    found = times(fitting.fit(PEAKS, KERNELS, disturbed))
    assert np.median(np.abs(np.array(found) / times(TRUE) - 1)) < 0.05


def test_rates_survive_their_numbers() -> None:
    assert Rates.of(TRUE.numbers()) == TRUE

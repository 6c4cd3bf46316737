from random import Random
from typing import Any

import pytest

from tests.tuning.kernels import MACHINE, product
from tvmfuse.kernels import families
from tvmfuse.kernels.choices import Recorder, by_default
from tvmfuse.tuning.space import Axis, Space, explore, key, nearest, toward

SPACE = Space((Axis("rows", (1, 2, 4, 8), 2), Axis("order", ("ij", "ji"), "ij")))


def dynamic(recorder: Recorder) -> None:
    """A schedule whose second decision depends on the first."""
    tasks = recorder.choose("tasks", (1, 2, 4), default=1)
    recorder.choose("unroll", tuple(range(1, 8 // tasks + 1)), default=1)
    if tasks > 1:
        recorder.choose("order", ("rows", "columns"), default="rows")


def test_the_walks_find_options_that_the_default_does_not_offer() -> None:
    axes = {axis.name: axis for axis in explore(dynamic).axes}
    assert axes["unroll"].options == (1, 2, 3, 4, 5, 6, 7, 8)
    assert axes["order"].options == ("rows", "columns")
    assert axes["order"].default == "rows"


def test_a_schedule_without_decisions_has_one_point() -> None:
    assert explore(lambda _recorder: None) == Space(())
    assert Space(()).size == 1


def test_the_default_point_is_the_default_kernel() -> None:
    def walk(recorder: Recorder) -> Any:
        return families.schedule(product(), MACHINE, recorder.choose).function

    recorder = by_default()
    walk(recorder)
    assert explore(walk).default == recorder.taken


def test_few_points_are_enumerated_and_many_are_drawn_once_each() -> None:
    everything = SPACE.points(Random(0), limit=8)
    assert len({key(point) for point in everything}) == SPACE.size == 8
    drawn = SPACE.points(Random(0), limit=5)
    assert len({key(point) for point in drawn}) == 5
    assert {key(point) for point in drawn} < {key(point) for point in everything}


def test_neighbours_are_one_step_away() -> None:
    assert SPACE.neighbours({"rows": 2, "order": "ij"}) == [
        {"rows": 1, "order": "ij"},
        {"rows": 4, "order": "ij"},
        {"rows": 2, "order": "ji"},
    ]


def test_positions_lie_between_0_and_1_also_for_points_of_other_spaces() -> None:
    assert SPACE.position({"rows": 8, "order": "ji"}) == (1.0, 1.0)
    assert SPACE.position({"rows": 1000, "tile": 3}) == (1.0, 0.0)


@pytest.mark.parametrize(
    ("wanted", "taken"), [(2, 2), (5, 4), (100, 8), (0, 1), ("wide", 1), (True, 1)]
)
def test_the_nearest_option_is_taken(wanted: Any, taken: int) -> None:
    assert nearest((1, 2, 4, 8), wanted) == taken
    recorder = toward({"rows": wanted})
    recorder.choose("rows", (1, 2, 4, 8), default=2)
    recorder.choose("other", (1, 2), default=2)
    assert recorder.taken == {"rows": taken, "other": 2}

"""The search finds the best point early, whatever fails, and is the same for a seed."""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import pytest

from tvmfuse.tuning.ranker import GaussianProcess, Quadratic, Ranker, Sample
from tvmfuse.tuning.space import Axis, Point, Space, key
from tvmfuse.tuning.strategy import Search

STEPS = (1, 2, 4, 8, 16, 32)
SPACE = Space((Axis("tasks", STEPS, 1), Axis("unroll", STEPS, 4), Axis("rows", STEPS, 1)))


def bowl(point: Point) -> float:
    """Fastest, 100 µs, at tasks=2, unroll=16, rows=8."""
    steps = (("tasks", 1), ("unroll", 4), ("rows", 3))
    return 100.0 * (1.0 + 0.1 * sum((math.log2(point[name]) - at) ** 2 for name, at in steps))


def searched(search: Search, time_us: Callable[[Point], float | None], trials: int) -> list[Point]:
    asked: list[Point] = []
    while len(asked) < trials and (batch := search.propose(min(6, trials - len(asked)))):
        for point in batch:
            search.observe(point, time_us(point))
        asked += batch
    return asked


def test_the_default_is_measured_first() -> None:
    assert Search(SPACE).propose(6) == [SPACE.default]


@pytest.mark.parametrize("seed", range(5))
def test_a_tenth_of_the_trials_finds_nearly_all_of_the_gain(seed: int) -> None:
    search = Search(SPACE, seed=seed)
    searched(search, bowl, SPACE.size // 10)
    gain = bowl(SPACE.default) - search.best_us
    assert gain >= 0.95 * (bowl(SPACE.default) - 100.0)


def test_nothing_is_proposed_twice_and_everything_in_the_end() -> None:
    asked = searched(Search(SPACE), bowl, 10_000)
    assert len({key(point) for point in asked}) == len(asked) == SPACE.size


def test_a_search_is_the_same_for_a_seed() -> None:
    first, again, other = (searched(Search(SPACE, seed=s), bowl, 40) for s in (1, 1, 2))
    assert first == again
    assert first != other


def test_failures_are_avoided_and_survived() -> None:
    def fragile(point: Point) -> float | None:
        return None if point["unroll"] >= 16 else bowl(point)

    search = Search(SPACE)
    asked = searched(search, fragile, 40)
    assert search.best_us < 115.0
    n_failed = sum(point["unroll"] >= 16 for point in asked)
    assert n_failed < len(asked) / 3


def test_a_search_in_which_all_fails_ends_without_a_best() -> None:
    search = Search(SPACE)
    searched(search, lambda _point: None, 10_000)
    assert search.is_exhausted
    assert search.best is None
    assert search.best_us == math.inf


def test_what_was_measured_before_is_not_proposed() -> None:
    search = Search(SPACE)
    known = SPACE.neighbours(SPACE.default)
    for point in [SPACE.default, *known]:
        search.observe(point, bowl(point))
    asked = searched(search, bowl, 10_000)
    assert len(asked) == SPACE.size - len(known) - 1


def test_what_was_asked_is_not_asked_again_where_another_point_came_of_it() -> None:
    search = Search(SPACE)
    asked = {"tasks": 32, "unroll": 32, "rows": 32}
    search.observe(SPACE.default, 1.0, asked=asked)
    assert asked not in searched(search, bowl, 10_000)


def test_records_of_similar_kernels_lead_the_first_batch() -> None:
    prior = [
        Sample(SPACE.position(point), math.log(bowl(point) / 100.0), weight=0.2)
        for point in SPACE._all()
    ]
    search = Search(SPACE, prior=prior)
    searched(search, bowl, 4)
    assert search.best_us < 115.0


def test_the_potential_falls_to_nothing() -> None:
    search = Search(SPACE)
    searched(search, bowl, 7)
    begun = search.potential()
    searched(search, bowl, 10_000)
    assert begun > search.potential() == 0.0


@pytest.mark.parametrize("model", [GaussianProcess(noise=1e-6), Quadratic(stiffness=1e-6)])
def test_the_models_follow_a_parabola(model: Ranker) -> None:
    samples = [Sample((x / 10,), (x / 10 - 0.3) ** 2) for x in range(11)]
    predict = model.fit(samples)
    assert predict([(0.3,), (0.8,)]) == pytest.approx([0.0, 0.25], abs=1e-3)
    assert predict([(0.35,)]) == pytest.approx([0.0025], abs=0.01)


def test_the_model_promises_nothing_where_nothing_was_measured() -> None:
    costs = [0.0, -0.1, -0.2, -0.3]  # falling, towards an end that nobody has seen
    predict = GaussianProcess().fit([Sample((x / 10,), cost) for x, cost in enumerate(costs)])
    assert -0.3 < predict([(1.0,)])[0] < 0.0


def test_a_failure_or_an_outlier_does_not_flatten_the_rest() -> None:
    good = [Sample((x / 10,), 0.1 * abs(x - 3)) for x in range(8)]
    for worst in (2.0, 20.0):
        predict = GaussianProcess().fit([*good, Sample((1.0,), worst)])
        order = np.argsort(predict([(x / 10,) for x in range(8)]))
        assert order[0] == 3


def test_a_sample_of_little_weight_gives_way_to_one_of_the_kernel() -> None:
    samples = [Sample((0.0,), 0.0), Sample((0.5,), -0.1), Sample((1.0,), 0.3)]
    lent = [Sample((0.5,), 0.4, weight=0.2)]
    (both,) = GaussianProcess().fit([*samples, *lent])([(0.5,)])
    assert both == pytest.approx(-0.1, abs=0.05)


def test_one_sample_and_a_space_without_axes_are_enough() -> None:
    assert GaussianProcess().fit([Sample((0.5,), 0.2)])([(0.1,)]) == pytest.approx([0.2])
    assert GaussianProcess().fit([Sample((), 0.2)])([(), ()]) == pytest.approx([0.2, 0.2])

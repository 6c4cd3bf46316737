"""Trials go where a model gains most, end when they should, and are kept at once."""

from __future__ import annotations

import pytest

from tests.tuning.kernels import MadeUp, product, task
from tvmfuse.errors import TuningError
from tvmfuse.tuning.budget import Budget
from tvmfuse.tuning.confirm import confirm
from tvmfuse.tuning.history import MemoryHistory
from tvmfuse.tuning.measure import Trial
from tvmfuse.tuning.space import Point, key
from tvmfuse.tuning.strategy import Search
from tvmfuse.tuning.tuner import Progress, Status, Tuner


def unrolled(point: Point) -> float:
    """Faster the nearer the unrolling is to 12."""
    return 100.0 + 5.0 * abs(point["unroll"] - 12) + point["row_tasks"]


def tuner(time_us: MadeUp, history: MemoryHistory | None = None, **options: object) -> Tuner:
    return Tuner([task()], time_us, history or MemoryHistory(), **options)  # type: ignore[arg-type]


def test_every_trial_is_kept_before_the_next_one_begins() -> None:
    history = MemoryHistory()
    kept: list[int] = []

    def time_us(point: Point) -> float:
        kept.append(len(history.trials))
        return unrolled(point)

    tuner(MadeUp(time_us), history).run(Budget(trials=8))
    assert kept == list(range(8))
    assert len(history.trials) == 8


def test_the_budget_of_trials_is_kept_to_and_progress_told() -> None:
    told: list[Status] = []
    measure = MadeUp(unrolled)
    tuner(measure).run(Budget(trials=8), told.append)
    assert [status.trials for status in told] == list(range(1, 9))
    assert len(measure.asked) == 8
    assert told[-1].best_us == min(map(unrolled, measure.asked))
    assert told[-1].default_us == unrolled(measure.asked[0])


def test_a_search_goes_on_after_each_kernel_was_measured_once() -> None:
    kernels = [task(), task(product(40)), task(product(64))]
    search = Tuner(kernels, MadeUp(unrolled), MemoryHistory())
    search.run(Budget(trials=8), once=True)
    assert [len(kernel.trials) for kernel in search.kernels] == [1, 1, 1]
    search.run(Budget(trials=8))
    assert sum(len(kernel.trials) for kernel in search.kernels) == 8


def test_no_time_means_no_trial() -> None:
    measure = MadeUp(unrolled)
    tuner(measure).run(Budget(seconds=0.0))
    assert measure.asked == []


def test_a_search_ends_when_nothing_is_left() -> None:
    measure = MadeUp(unrolled)
    tuner(measure).run(Budget())
    assert len(measure.asked) == task().space.size


def test_a_search_ends_when_little_is_expected() -> None:
    exact, coarse = MadeUp(unrolled), MadeUp(unrolled)
    tuner(exact).run(Budget(within=0.001))
    tuner(coarse).run(Budget(within=0.1))
    assert len(coarse.asked) < len(exact.asked)


def test_one_seed_gives_the_same_trials_and_another_does_not() -> None:
    runs = [MadeUp(unrolled) for _ in range(3)]
    for measure, seed in zip(runs, (3, 3, 4), strict=True):
        tuner(measure, seed=seed).run(Budget(trials=15))
    assert runs[0].asked == runs[1].asked
    assert runs[0].asked != runs[2].asked


def test_resuming_measures_nothing_again_and_knows_the_best() -> None:
    history = MemoryHistory()
    first, second = MadeUp(unrolled), MadeUp(unrolled)
    tuner(first, history).run(Budget(trials=10))
    resumed = tuner(second, history, resume=True)
    assert resumed.kernels[0].best_us == min(map(unrolled, first.asked))
    resumed.run(Budget(trials=10))
    assert not {key(p) for p in first.asked} & {key(p) for p in second.asked}


def test_a_resumed_search_goes_to_what_was_not_searched() -> None:
    known, unknown = task(product(32), uses=4, name="known"), task(product(40), name="unknown")
    history = MemoryHistory()
    Tuner([known], MadeUp(lambda _: 100.0), history).run(Budget(trials=20))
    search = Tuner([known, unknown], MadeUp(lambda _: 100.0), history, resume=True)
    search.run(Budget(trials=8))
    assert [len(kernel.trials) for kernel in search.kernels] == [0, 8]


def test_the_kernel_that_weighs_more_gets_the_trials() -> None:
    heavy = task(product(32), uses=10, name="heavy")
    light = task(product(40), uses=1, name="light")
    search = Tuner([light, heavy], MadeUp(unrolled), MemoryHistory())
    search.run(Budget(trials=14))
    n_trials = {kernel.task.name: len(kernel.trials) for kernel in search.kernels}
    assert n_trials["light"] == 1
    assert n_trials["heavy"] == 13


def test_a_model_that_promises_for_ever_does_not_starve_the_other_kernels(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(Search, "potential", lambda _: 0.8)
    search = Tuner([task(uses=10), task(product(40))], MadeUp(lambda _: 100.0), MemoryHistory())
    search.run(Budget(trials=60))
    assert min(len(kernel.trials) for kernel in search.kernels) >= 12


def test_a_model_that_keeps_its_promises_is_believed() -> None:
    kernel = winner(0, default_us=100.0, best_us=100.0)
    kernel.promised = 0.2
    for best_us, trust in ((90.0, 0.25), (90.0, 0.075)):
        before_us = kernel.best_us
        kernel.best = Trial(kernel.task.space.default, "measured", (best_us,))
        kernel.learn(before_us)
        assert kernel.trust == pytest.approx(trust)
        kernel.promised = 0.2


def test_one_bad_kernel_does_not_end_a_search() -> None:
    bad, good = task(product(32), uses=10, name="bad"), task(product(40), name="good")

    def measure(which: object, decisions: Point, **_: float | None) -> Trial:
        if which is bad:
            return Trial(decisions, "crash", reason="made up")
        return Trial(decisions, "measured", (unrolled(decisions),))

    search = Tuner([bad, good], measure, MemoryHistory())
    search.run(Budget(trials=30))
    found = {kernel.task.name: kernel for kernel in search.kernels}
    assert found["bad"].best is None
    assert found["good"].has_gain


def winner(number: int, *, default_us: float, best_us: float) -> Progress:
    kernel = task(product(8 * number + 8), name=str(number))
    default = Trial(kernel.space.default, "measured", (default_us,))
    best = Trial({**kernel.space.default, "unroll": 1}, "measured", (best_us,))
    return Progress(kernel, Search(kernel.space), default=default, best=best)


WINNERS = [winner(i, default_us=100.0, best_us=50.0 + i) for i in range(4)]


def test_all_records_are_kept_at_once_where_they_help_together() -> None:
    asked: list[int] = []

    def ratio(old: object, new: list[Progress]) -> float:
        asked.append(len(new))
        return 0.8

    assert confirm(WINNERS, ratio).kept == WINNERS  # type: ignore[arg-type]
    assert asked == [4]


@pytest.mark.parametrize("culprit", range(4))
def test_the_record_that_slows_the_model_down_is_found(culprit: int) -> None:
    def ratio(old: list[Progress], new: list[Progress]) -> float:
        return 1.5 if WINNERS[culprit] in new else 0.9 ** (len(new) - len(old))

    kept = confirm(WINNERS, ratio).kept  # type: ignore[arg-type]
    assert {k.task.name for k in kept} == {"0", "1", "2", "3"} - {str(culprit)}


def test_what_makes_no_difference_is_not_kept() -> None:
    found = confirm(WINNERS, lambda _old, _new: 1.0)
    assert (found.kept, found.untried) == ([], [])


def test_what_gains_nothing_in_its_place_is_not_tried_in_the_whole() -> None:
    asked: list[set[str]] = []

    def ratio(old: object, new: list[Progress]) -> float:
        asked.append({kernel.task.name for kernel in new})
        return 0.9

    keys = [kernel.task.workload.key for kernel in WINNERS]
    ratios = {keys[0]: 0.7, keys[1]: 1.0, keys[2]: 1.2}  # the fourth could not be timed
    found = confirm(WINNERS, ratio, lambda _: ratios)  # type: ignore[arg-type]
    assert asked == [{"0", "3"}]
    assert ([kernel.task.name for kernel in found.kept], found.untried) == (["0", "3"], [])
    assert found.ratio == 0.9
    none = confirm(WINNERS, ratio, lambda _: dict.fromkeys(keys, 1.0))  # type: ignore[arg-type]
    assert (none.kept, none.untried, none.ratio) == ([], [], 1.0)
    assert len(asked) == 1


def test_where_places_cannot_be_timed_all_are_tried() -> None:
    def in_place(_: object) -> dict[str, float]:
        raise TuningError("no clock")

    assert confirm(WINNERS, lambda _old, _new: 0.8, in_place).kept == WINNERS


def test_gains_of_parts_are_multiplied() -> None:
    def ratio(old: list[Progress], new: list[Progress]) -> float:
        return 1.5 if WINNERS[0] in new else 0.9 ** (len(new) - len(old))

    assert confirm(WINNERS, ratio).ratio == pytest.approx(0.9**3)  # type: ignore[arg-type]


def test_without_time_all_are_tried_once_and_the_rest_is_named() -> None:
    found = confirm(WINNERS, lambda _old, _new: 0.5, is_over=lambda: True)
    assert (found.kept, found.untried) == (WINNERS, [])
    found = confirm(WINNERS, lambda _old, _new: 1.5, is_over=lambda: True)
    assert found.kept == []
    assert sorted(kernel.task.name for kernel in found.untried) == ["0", "1", "2", "3"]
    assert confirm([], lambda _old, _new: 0.5).kept == []


def test_a_lucky_trial_does_not_survive_a_duel() -> None:
    lucky = iter([5.0])

    def time_us(point: Point) -> float:
        return next(lucky, 100.0) if point["unroll"] == 2 else 90.0

    search = tuner(MadeUp(time_us))
    search.run(Budget(trials=30))
    (kernel,) = search.kernels
    assert kernel.best_us == 5.0
    search.duel(kernel)
    assert kernel.best is kernel.default
    assert not kernel.has_gain


def test_a_real_gain_survives_a_duel() -> None:
    search = tuner(MadeUp(unrolled))
    search.run(Budget(trials=10))
    (kernel,) = search.kernels
    before_us = kernel.best_us
    search.duel(kernel)
    assert (kernel.best_us, kernel.has_gain) == (before_us, True)

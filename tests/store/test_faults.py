"""The short form of ``make faults``: what harms a store, and that nothing committed is lost."""

from __future__ import annotations

from pathlib import Path

from faults import postgres, trials, tuners


def _is_right(outcome: trials.Outcome) -> None:
    assert outcome.is_right, outcome


def test_writers_at_once_lose_nothing(database: str) -> None:
    _is_right(trials.many_writers(database, n_processes=4, n_commits=50))


def test_a_killed_writer_loses_at_most_the_trial_in_flight(tmp_path: Path) -> None:
    _is_right(trials.killed_writers(tmp_path, n_kills=10))


def test_a_damaged_file_gives_whole_records_or_a_sentence(tmp_path: Path) -> None:
    for outcome in trials.damaged_files(tmp_path, n_flips=60):
        _is_right(outcome)


def test_a_full_disk_keeps_what_was_committed(tmp_path: Path) -> None:
    outcome = trials.full_disk(tmp_path)
    _is_right(outcome)
    assert "cannot be written to" in str(outcome.figures["said"])


def test_a_server_that_goes_away_and_comes_back_has_every_trial_once(
    server: postgres.Server,
) -> None:
    _is_right(trials.server_away(server, n_commits=400, n_stops=2))


def test_a_tuner_whose_server_goes_away_and_comes_back_ends_well(
    server: postgres.Server, tmp_path: Path
) -> None:
    _is_right(tuners.server_away(tmp_path, server, n_stops=2))

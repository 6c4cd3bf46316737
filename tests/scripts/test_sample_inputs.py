"""Sample inputs have the asked shape, type and range, and are the same every time."""

from __future__ import annotations

import numpy as np
import pytest
from sample_inputs import sample

PICTURE = {"like": "picture", "low": -2, "high": 3}


@pytest.mark.parametrize("shape", [(1, 3, 48, 192), (2, 60, 80, 3)])
def test_a_picture_spans_its_range_and_is_smooth(shape: tuple[int, ...]) -> None:
    data = sample(PICTURE, shape=shape, dtype="float32")
    assert data.shape == shape
    assert data.dtype == np.float32
    assert (data.min(), data.max()) == (-2, 3)
    rows = data if shape[1] == 3 else data.transpose(0, 3, 1, 2)
    roughness = np.abs(np.diff(rows, axis=-1)).mean() / data.std()
    assert roughness < 0.5  # 1.13 for white noise


def test_speech_is_harmonic_and_silent_between_syllables() -> None:
    data = sample({"like": "speech"}, shape=(1, 16000), dtype="float32")[0]
    loudness = np.sqrt((data.reshape(100, 160) ** 2).mean(axis=1))
    assert np.abs(data).max() == pytest.approx(0.5)
    assert loudness.min() < 0.05 * loudness.max()
    spectrum = np.abs(np.fft.rfft(data))
    assert np.sort(spectrum)[-200:].sum() > 0.5 * spectrum.sum()


def test_whole_numbers_stay_below_high() -> None:
    data = sample({"low": 0, "high": 3}, shape=(1000,), dtype="int64")
    assert data.dtype == np.int64
    assert set(data) == {0, 1, 2}


def test_a_value_fills_the_shape_or_stands_as_given() -> None:
    assert sample({"value": 1}, shape=(2, 2), dtype="int64").tolist() == [[1, 1], [1, 1]]
    assert sample({"value": [0, 1, 0]}, shape=(3,), dtype="float32").tolist() == [0, 1, 0]
    assert sample({"value": 16000}, shape=(), dtype="int64") == 16000


def test_the_entrys_shape_goes_before_the_files() -> None:
    assert sample({"shape": [1, 4]}, shape=(0, 4), dtype="float32").shape == (1, 4)


def test_nothing_asked_for_is_standard_normal() -> None:
    data = sample({}, shape=(10000,), dtype="float32")
    assert abs(data.mean()) < 0.05
    assert abs(data.std() - 1) < 0.05


def test_the_same_seed_gives_the_same_input() -> None:
    first, again, other = (
        sample(PICTURE, shape=(1, 3, 8, 8), dtype="float32", seed=seed) for seed in (0, 0, 1)
    )
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match="'picture' or 'speech', but got 'music'"):
        sample({"like": "music"}, shape=(1, 3, 8, 8), dtype="float32")

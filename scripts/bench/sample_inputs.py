"""Seeded inputs that resemble what a model is fed in practice.

Noise drives detectors and saturating outputs into regions where two correct
runtimes disagree; a picture, a sound or a sentence does not.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

SAMPLE_RATE_HZ = 16_000


def sample(
    given: Mapping[str, Any],
    *,
    shape: Sequence[int],
    dtype: str,
    seed: int = 0,
) -> npt.NDArray[Any]:
    """Return one input as ``models.toml`` asks for it.

    Parameters
    ----------
    given : Mapping
        The input's entry in ``models.toml``: ``value``, ``low``, ``high``, ``like``.
        An empty one asks for standard normal noise.
    shape : Sequence of int
        Shape of the input where the entry gives none.
    dtype : str
        NumPy's name of its element type.
    seed : int
        Seed of the random generator.
    """
    shape = tuple(given.get("shape", shape))
    rng = np.random.default_rng(seed)
    if "value" in given:
        return np.broadcast_to(np.asarray(given["value"], dtype), shape).copy()
    low, high = given.get("low"), given.get("high")
    match given.get("like"):
        case "picture":
            data = stretch(picture(shape, rng), low, high)
        case "speech":
            data = stretch(speech(shape, rng), low, high)
        case None if low is None:
            data = rng.standard_normal(shape)
        case None if np.issubdtype(dtype, np.integer):
            data = rng.integers(low, high, shape)
        case None:
            data = rng.uniform(low, high, shape)
        case other:
            raise ValueError(f"like must be 'picture' or 'speech', but got {other!r}")
    return data.astype(dtype)


def stretch(
    data: npt.NDArray[np.float64], low: float | None, high: float | None
) -> npt.NDArray[np.float64]:
    """Map the range of ``data`` to ``low`` … ``high``, where these are given."""
    if low is None or high is None:
        return data
    least, greatest = data.min(), data.max()
    return low + (data - least) * (high - low) / (greatest - least)


def picture(shape: Sequence[int], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return pictures of soft light with hard-edged dark bars, values about 0 … 1.

    Parameters
    ----------
    shape : Sequence of int
        (batch, 3, height, width), or (batch, height, width, 3).
    rng : numpy.random.Generator
        Decides what is in the pictures.
    """
    channels_first = shape[1] == 3
    batch, height, width = shape[0], *(shape[2:] if channels_first else shape[1:3])
    rows, columns = np.mgrid[0:height, 0:width]
    images = np.empty((batch, height, width, 3))
    for image in images:
        waves = rng.uniform(1, 4, 2) * 2 * np.pi / (height, width)
        light = 0.7 + 0.2 * np.cos(waves[0] * rows) * np.cos(waves[1] * columns)
        image[:] = light[:, :, None] * rng.uniform(0.8, 1.0, 3)
        for _ in range(12):
            top, left = rng.integers(0, (height, width))
            image[top : top + height // 8, left : left + width // 24 + 1] = rng.uniform(0, 0.3, 3)
        image += rng.normal(0, 0.01, image.shape)
    return images.transpose(0, 3, 1, 2) if channels_first else images


def speech(shape: Sequence[int], rng: np.random.Generator) -> npt.NDArray[np.float64]:
    """Return voiced syllables over faint noise, 16 kHz, values within ±1.

    Parameters
    ----------
    shape : Sequence of int
        (…, samples)
    rng : numpy.random.Generator
        Decides pitch, loudness of the harmonics and noise.
    """
    seconds = np.arange(shape[-1]) / SAMPLE_RATE_HZ
    pitch_hz = rng.uniform(100, 200)
    harmonics = np.arange(1, 16)
    phases = 2 * np.pi * (pitch_hz * np.outer(harmonics, seconds) + rng.random((15, 1)))
    voice = (np.sin(phases) / harmonics[:, None]).sum(axis=0)
    syllables = np.sin(2 * np.pi * 2 * seconds + 1) ** 2
    sound = voice * syllables + rng.normal(0, 0.01, shape)
    return 0.5 * sound / np.abs(sound).max()

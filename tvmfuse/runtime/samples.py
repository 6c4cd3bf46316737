"""Make up inputs that a model can digest."""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse.frontend import TensorSpec
from tvmfuse.runtime import npz
from tvmfuse.runtime.arguments import fit_inputs
from tvmfuse.runtime.memory import aligned

_IDS = 100  # fits every vocabulary, and the 80 to 100 classes of small models


def random_inputs(specs: Iterable[TensorSpec], *, seed: int = 0) -> dict[str, np.ndarray[Any, Any]]:
    """Return one array for each input: the same ones for the same seed.

    Floats are drawn from N(0, 1), bytes from their full range. Wider integers are
    taken for indices and drawn from 0 to 99, since an index that is out of range
    reads memory it should not: an input with "mask" in its name is all ones, one
    with "type" or "segment" holds 0 and 1, one with "position" counts up. An extent
    that is only known at run time is 1. Each array begins at a multiple of 64 bytes,
    so that a session need not copy it.

    Parameters
    ----------
    specs : iterable of TensorSpec
        Usually ``session.inputs``.
    seed : int
        Chooses the values.
    """
    return {spec.name: aligned(_random(spec, seed=seed)) for spec in specs}


def inputs_from(
    path: Path | None, specs: Iterable[TensorSpec], *, seed: int = 0
) -> dict[str, np.ndarray[Any, Any]]:
    """Read inputs from an ``.npz`` file, and make up those that it does not hold.

    Parameters
    ----------
    path : Path, optional
        The file; all inputs are made up without one.
    specs : iterable of TensorSpec
        Usually ``session.inputs``.
    seed : int
        Chooses the values that are made up.

    Raises
    ------
    InputError
        The file cannot be read, or holds what is no input, or one of another shape or dtype.
    """
    wanted = tuple(specs)
    given = {} if path is None else npz.read(path)
    feeds = {**random_inputs(wanted, seed=seed), **given}
    fit_inputs(wanted, feeds)  # a worker, or another runtime, would say it less well
    return feeds


def _random(spec: TensorSpec, *, seed: int) -> np.ndarray[Any, Any]:
    # By name, so that an input keeps its values when another one is added.
    rng = np.random.default_rng((seed, zlib.crc32(spec.name.encode())))
    dtype = np.dtype(spec.dtype)
    shape = tuple(extent if isinstance(extent, int) else 1 for extent in spec.shape)
    name = spec.name.lower()
    if dtype.kind in "fV":
        return rng.standard_normal(shape, dtype=np.float32).astype(dtype)
    if "mask" in name:
        return np.ones(shape, dtype)
    if dtype.kind == "b":
        return rng.integers(0, 2, shape).astype(dtype)
    if dtype.itemsize == 1:
        limits = np.iinfo(dtype)
        return rng.integers(limits.min, limits.max, shape, dtype, endpoint=True)
    if "position" in name and shape:
        return np.broadcast_to(np.arange(shape[-1]) % _IDS, shape).astype(dtype)
    n_values = 2 if re.search("type|segment", name) else _IDS
    return rng.integers(0, n_values, shape).astype(dtype)

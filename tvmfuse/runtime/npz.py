"""Keep arrays by name in ``.npz`` files, whatever the names."""

from __future__ import annotations

import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tvmfuse.errors import InputError

Arrays = Mapping[str, np.ndarray[Any, Any]]


def write(arrays: Arrays, path: Path) -> None:
    """Write arrays; ``numpy.savez`` would take an array named "file" for an option."""
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def read(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read what :func:`write` or ``numpy.savez`` wrote.

    Raises
    ------
    InputError
        There is no such file, it is damaged, or it holds Python objects.
    """
    try:
        with np.load(path, allow_pickle=False) as file:
            return dict(file)
    except (OSError, ValueError, EOFError, TypeError, zipfile.BadZipFile) as error:
        raise InputError(
            f"inputs: {path} is required to be an .npz file: {_reason(error)}; write it with "
            "numpy.savez, an array for each input"
        ) from error


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    if "Object arrays" in str(error):
        return "it holds Python objects, which are never loaded"
    return "it is damaged, or another kind of file"  # NumPy speaks of pickles and context managers

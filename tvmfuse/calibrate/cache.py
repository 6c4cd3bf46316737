"""Keep measured peaks beside the user's other caches, one file for each device."""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import platformdirs

from tvmfuse._tvm import versions
from tvmfuse._tvm.threads import in_use
from tvmfuse.host import detect
from tvmfuse.plan import Peaks
from tvmfuse.targets.base import Target

_METHOD = 1  # raised whenever something else is measured, or in another way


def load_cached(target: Target) -> Peaks | None:
    """Return the peaks once measured for a target on this machine, or None.

    They are those of the same CPU, code generation and number of threads. A file
    that cannot be read is as good as none.
    """
    fingerprint = _fingerprint(target)
    try:
        data = json.loads(_path(fingerprint).read_text())
        return Peaks(**data["peaks"]) if data["device"] == fingerprint else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def calibrated(target: Target) -> Target:
    """Return a target with the peaks once measured for it here, else as it is."""
    peaks = load_cached(target) if target.runs_here else None
    return target.with_peaks(peaks) if peaks is not None else target


def store(target: Target, peaks: Peaks) -> str | None:
    """Keep measured peaks; return a note where the folder cannot be written."""
    fingerprint = _fingerprint(target)
    path = _path(fingerprint)
    text = json.dumps({"device": fingerprint, "peaks": asdict(peaks)}, indent=2) + "\n"
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=path.parent, delete=False) as file:
            file.write(text)
        Path(file.name).replace(path)
    except OSError as error:
        return f"not kept: {path.parent} cannot be written ({error.strerror})"
    return None


def _path(fingerprint: Mapping[str, Any]) -> Path:
    digest = hashlib.sha256(json.dumps(fingerprint, sort_keys=True).encode()).hexdigest()
    return Path(platformdirs.user_cache_dir("tvmfuse")) / "peaks" / f"{digest[:16]}.json"


def _fingerprint(target: Target) -> dict[str, Any]:
    """Return all that the numbers depend on, as JSON-compatible data."""
    return {
        "method": _METHOD,
        "target": dict(target.attrs),
        "cache_bytes": dict(target.peaks.cache_bytes),
        "threads": in_use(),
        "cpu": detect().model,
        "tvm": versions.installed()[0],
    }

"""What this machine can do at best, measured once and kept."""

from tvmfuse.calibrate.cache import load_cached
from tvmfuse.calibrate.measurement import calibrate

__all__ = ["calibrate", "load_cached"]

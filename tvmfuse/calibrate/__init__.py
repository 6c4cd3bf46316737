"""What this machine can do at best, measured once and kept."""

from tvmfuse.calibrate.cache import calibrated, load_cached
from tvmfuse.calibrate.measurement import calibrate

__all__ = ["calibrate", "calibrated", "load_cached"]

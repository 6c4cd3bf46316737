"""Fusion patterns: what may become one kernel, when it is legal, how it is checked."""

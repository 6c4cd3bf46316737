"""Kernel families: one file each, schedules and decisions together."""

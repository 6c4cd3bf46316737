"""Everything about the package stands in pyproject.toml; this lets older tools find it."""

from setuptools import setup

setup()

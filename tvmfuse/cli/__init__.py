"""The command ``tvmfuse``. Neither it nor its ``--help`` imports TVM."""

from tvmfuse.cli.app import main

__all__ = ["main"]

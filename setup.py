"""Everything about the package stands in pyproject.toml; here the packs are put beside the code."""

from pathlib import Path
from shutil import copy

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithPacks(build_py):
    """Copies the tuning packs, which lie outside of the package, into what is installed."""

    def run(self) -> None:
        """Build the modules, then copy the packs."""
        super().run()
        if self.editable_mode:  # a checkout finds them where they are
            return
        folder = Path(self.build_lib, "tvmfuse", "packs")
        self.mkpath(str(folder))
        for pack in sorted(Path("tuning_logs", "packs").glob("*.jsonl")):
            copy(pack, folder)


setup(cmdclass={"build_py": BuildWithPacks})

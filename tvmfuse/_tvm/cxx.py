"""The C++ compiler that TVM links with, asked for before TVM trips over its absence.

Without one, TVM 0.27 ends in ``TypeError: expected str, bytes or os.PathLike
object, not NoneType``.
"""

import shutil

from tvm.support import cc

from tvmfuse.errors import EnvironmentMismatchError


def compiler() -> str:
    """Return the command of the C++ compiler that TVM will call.

    Raises
    ------
    EnvironmentMismatchError
        ``CXX`` names none, or it is unset and none is on the path.
    """
    command: str | None = cc.get_cc()
    if command is None or shutil.which(command) is None:
        raise EnvironmentMismatchError(
            "linking needs a C++ compiler, but found "
            f"{command or 'no g++, clang++ or c++ on PATH'}; install one, or set CXX to its path"
        )
    return command

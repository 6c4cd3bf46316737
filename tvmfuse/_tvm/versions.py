"""Refuse a pair of TVM and tvm-ffi versions that is known to crash.

TVM 0.27.0.post1 declares ``apache-tvm-ffi>=0.1.14.post0`` without an upper
bound. With 0.1.15 every serialisation of a module ends in a segmentation fault,
which no ``except`` can catch, so the pair is checked by version.
"""

from importlib.metadata import PackageNotFoundError, version

from tvmfuse.errors import EnvironmentMismatchError

TVM = "0.27.0.post1"
FFI_SERIES = "0.1.14"


def check() -> None:
    """Raise unless the installed TVM and tvm-ffi are the pair that is known to work.

    Raises
    ------
    EnvironmentMismatchError
        A package is missing or has another version.
    """
    found_tvm, found_ffi = installed()
    if found_tvm == TVM and found_ffi.split(".post")[0] == FFI_SERIES:
        return
    raise EnvironmentMismatchError(
        f"tvmfuse needs apache-tvm {TVM} with apache-tvm-ffi {FFI_SERIES}.post*, "
        f"but found apache-tvm {found_tvm} with apache-tvm-ffi {found_ffi}: "
        f"pip install 'apache-tvm=={TVM}' 'apache-tvm-ffi>=0.1.14.post0,<0.1.15'"
    )


def installed() -> tuple[str, str]:
    """Return the installed versions of apache-tvm and apache-tvm-ffi, or "none"."""
    return _version("apache-tvm"), _version("apache-tvm-ffi")


def _version(distribution: str) -> str:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return "none"

"""Let Ctrl-C through TVM.

tvm-ffi 0.1.14 carries what a Python callback raises through C++ by the name of its
class, and does not know ``KeyboardInterrupt``: it comes out as a ``RuntimeError``
without a word. A pass that is interrupted would look like one that failed.
"""

from __future__ import annotations


def let_through() -> None:
    """Tell tvm-ffi what an interrupt is."""
    from tvmfuse._tvm import tvm_ffi

    tvm_ffi.register_error("KeyboardInterrupt", KeyboardInterrupt)

"""The one door to TVM: ``from tvmfuse._tvm import relax, tvm``.

Importing this package checks that the installed versions fit together (a bad
pair segfaults later, which cannot be caught) and then imports TVM. Every quirk
of the pinned TVM has a file of its own here, with a test that fails once TVM
no longer needs it.
"""

from tvmfuse._tvm import threads, versions

versions.check()
threads.use_all_cores()

import tvm  # noqa: E402
import tvm_ffi  # noqa: E402
from tvm import relax, s_tir, te, tirx, topi  # noqa: E402

from tvmfuse._tvm import interrupts, recurrence, registers, unrolled  # noqa: E402

interrupts.let_through()
registers.register()
recurrence.register()
unrolled.register()

__all__ = ["relax", "s_tir", "te", "tirx", "topi", "tvm", "tvm_ffi"]

import subprocess
import sys

import pytest

from tvmfuse._tvm import tvm

_INTERRUPTED = """
import tvm

@tvm.transform.module_pass(opt_level=0)
def stopped(mod, context):
    raise KeyboardInterrupt
try:
    tvm.transform.Sequential([stopped])(tvm.IRModule())
except BaseException as error:
    print(type(error).__name__)
"""


def test_an_interrupt_comes_through_a_pass():
    @tvm.transform.module_pass(opt_level=0)
    def stopped(mod, context):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tvm.transform.Sequential([stopped])(tvm.IRModule())


def test_plain_tvm_still_needs_this():
    code = _INTERRUPTED
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["RuntimeError"]

import os
import subprocess
import sys

import pytest

from tvmfuse.host import detect

_COUNT = (
    "import os, sys; import tvmfuse._tvm, tvm; "
    "print(os.environ.get('TVM_NUM_THREADS'), tvm.get_global_func('runtime.NumThreads')())"
)


def _count(environment):
    done = subprocess.run(
        [sys.executable, "-c", _COUNT], env=environment, capture_output=True, text=True, check=True
    )
    return done.stdout.split()


@pytest.fixture
def bare():

    return {k: v for k, v in os.environ.items() if not k.endswith("NUM_THREADS")}


def test_tvm_gets_a_thread_on_each_core(bare):
    assert _count(bare) == [str(detect().cores)] * 2


def test_the_users_number_of_threads_stands(bare):
    assert _count({**bare, "TVM_NUM_THREADS": "1"}) == ["1", "1"]


def test_openmps_number_of_threads_stands(bare):
    assert _count({**bare, "OMP_NUM_THREADS": "1"})[1] == "1"


def test_plain_tvm_still_needs_this(bare):
    code = "import tvm; print(tvm.get_global_func('runtime.NumThreads')())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=True
    )

    assert int(done.stdout) == max(1, len(os.sched_getaffinity(0)) // 2)

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

    return {k: v for k, v in os.environ.items() if not k.endswith("_THREADS")}


def test_tvm_gets_a_thread_on_each_core(bare):
    assert _count(bare) == [str(detect().cores)] * 2


def test_the_users_number_of_threads_stands(bare):
    assert _count({**bare, "TVM_NUM_THREADS": "1"}) == ["1", "1"]


def test_openmps_number_of_threads_stands(bare):
    assert _count({**bare, "OMP_NUM_THREADS": "1"})[1] == "1"


@pytest.mark.skipif(sys.platform != "linux", reason="needs the affinity masks of Linux")
def test_a_process_tied_to_one_core_gets_one_thread(bare):
    code = f"import os; os.sched_setaffinity(0, [min(os.sched_getaffinity(0))]); {_COUNT}"
    done = subprocess.run(
        [sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=True
    )
    assert done.stdout.split() == ["1", "1"]


def test_as_many_models_run_at_once_as_the_cores_suffice_for(bare):
    code = (
        "from tvmfuse._tvm import threads; turns = threads.turns(); "
        "print(sum(turns.acquire(blocking=False) for _ in range(100)))"
    )
    cores = detect().cores
    for count, turns in ((1, cores), (cores, 1), (2 * cores, 1)):
        done = subprocess.run(
            [sys.executable, "-c", code],
            env={**bare, "TVM_NUM_THREADS": str(count)},
            capture_output=True,
            text=True,
            check=True,
        )
        assert int(done.stdout) == turns


def test_plain_tvm_still_needs_this(bare):
    code = "import tvm; print(tvm.get_global_func('runtime.NumThreads')())"
    done = subprocess.run(
        [sys.executable, "-c", code], env=bare, capture_output=True, text=True, check=True
    )

    assert int(done.stdout) == max(1, len(os.sched_getaffinity(0)) // 2)


_CORES = """
import os, sys
{first}
import tvm
from tvm import te
x = te.placeholder((1 << 16,), "float32", name="x")
y = te.compute(x.shape, lambda i: x[i] + 1, name="y")
sch = tvm.s_tir.Schedule(te.create_prim_func([x, y]))
sch.parallel(sch.get_loops(sch.get_sblock("y"))[0])
a = tvm.runtime.empty((1 << 16,), "float32")
tvm.compile(sch.mod, target="llvm")(a, a)  # the workers are started by the first kernel
print(max(len(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")))
print(min(len(os.sched_getaffinity(int(t))) for t in os.listdir("/proc/self/task")))
"""


def _affinities(first, environment):
    code = _CORES.format(first=first)
    environment = {**environment, "TVM_NUM_THREADS": "2"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True
    )
    return [int(line) for line in done.stdout.split()]


@pytest.mark.skipif(
    sys.platform != "linux" or len(os.sched_getaffinity(0)) < 2, reason="needs two cores of Linux"
)
class TestBinding:
    def test_no_thread_is_tied_to_a_core(self, bare):
        n_cores = len(os.sched_getaffinity(0))
        assert _affinities("import tvmfuse._tvm", bare) == [n_cores, n_cores]

    def test_the_user_may_tie_them(self, bare):
        assert _affinities("import tvmfuse._tvm", {**bare, "TVM_BIND_THREADS": "1"})[1] == 1

    def test_plain_tvm_still_ties_them(self, bare):
        assert _affinities("", bare)[1] == 1
